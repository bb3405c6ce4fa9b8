"""Writes a plan into a plan frame. The only module of the scheduler that writes shared memory.

A frame is rewritten only after its round is done; head and tail state the round, and the tail is written last, so that
a torn frame is seen (architecture.md, section 2).
"""

from __future__ import annotations

from services.scheduler.requests import Request
from services.scheduler.rounds import MORE, REPLAYED, ChunkPlan, LanePlan, Plan, RestorePlan
from shared.frames import InitFloat, InitInt, PlanFrame

NOBODY = -1
_SIGN = 1 << 63


def write(frame: PlanFrame, sequence: int, plan: Plan) -> None:
    """Fills the frame of round `sequence`. Fields of parts that the plan lacks name nobody."""
    frame.head[0] = frame.tail[0] = NOBODY
    frame.graph[0] = plan.graph.index
    frame.snapshot_row[0] = NOBODY
    _write_lanes(frame, plan.lanes)
    frame.chunk_slot[0] = NOBODY
    frame.chunk_length[0] = 0
    if plan.chunk is not None:
        _write_chunk(frame, plan.chunk)
    if plan.restore is not None:
        _write_restore(frame, plan.restore)
    if plan.resumed is not None:
        _write_stretch(frame, plan.resumed, plan.resumed.prompt_length, 0)
    if plan.admitted is None:
        frame.init_slot[0] = NOBODY
    else:
        _write_init(frame, plan.admitted, plan.prefix)
    frame.head[0] = sequence
    frame.tail[0] = sequence


def _write_lanes(frame: PlanFrame, lanes: tuple[LanePlan, ...]) -> None:
    count = len(lanes)
    frame.lanes[0] = count
    frame.slot[count:] = NOBODY
    for lane, plan in enumerate(lanes):
        request = plan.request
        frame.slot[lane] = request.slot
        frame.epoch[lane] = request.epoch
        frame.request[lane] = request.number
        frame.ceiling[lane] = plan.ceiling
        frame.page_table[lane] = request.table
        frame.export_slot[lane] = NOBODY if plan.export is None else plan.export.row
        frame.export_boundary[lane] = 0 if plan.export is None else plan.export.boundary
        _write_continuation(frame, lane, plan)


def _write_continuation(frame: PlanFrame, lane: int, plan: LanePlan) -> None:
    """The last two known tokens anchor it: whatever the queued rounds emit, the device finds its place or declines."""
    found = plan.continuation
    if found is None:
        frame.copy_length[lane] = 0
        frame.copy_source[lane] = 0
        return
    start, count = plan.known - 2, len(found.tokens)
    frame.copy_anchor[lane] = start
    frame.copy_length[lane] = count + 2
    frame.copy_source[lane] = found.source
    frame.copy_tokens[lane, :2] = plan.request.tokens[start : plan.known]
    frame.copy_tokens[lane, 2 : count + 2] = found.tokens


def _write_chunk(frame: PlanFrame, chunk: ChunkPlan) -> None:
    request, end = chunk.request, chunk.start + chunk.length
    _write_stretch(frame, request, chunk.start, chunk.length)
    frame.chunk_final[0] = chunk.final
    frame.chunk_pending[0] = request.tokens[end] if chunk.final == REPLAYED or chunk.scored else NOBODY
    frame.chunk_export_slot[0] = chunk.row


def _write_restore(frame: PlanFrame, restore: RestorePlan) -> None:
    _write_stretch(frame, restore.request, restore.start, restore.length)
    frame.snapshot_row[0] = restore.row
    frame.restore_length[0] = restore.total


def _write_stretch(frame: PlanFrame, request: Request, start: int, length: int) -> None:
    """A request and `length` tokens of it from position `start` on."""
    frame.chunk_slot[0] = request.slot
    frame.chunk_epoch[0] = request.epoch
    frame.chunk_request[0] = request.number
    frame.chunk_start[0] = start
    frame.chunk_length[0] = length
    frame.chunk_final[0] = MORE
    frame.chunk_pending[0] = frame.chunk_export_slot[0] = NOBODY
    frame.chunk_page_table[:] = request.table
    frame.chunk_tokens[:length] = request.tokens[start : start + length]


def _write_init(frame: PlanFrame, request: Request, prefix: int) -> None:
    submit, sampling = request.submit, request.submit.sampling
    ends, bias = submit.end_ids, sampling.logit_bias
    frame.init_slot[0] = request.slot
    frame.init_epoch[0] = request.epoch
    frame.init_request[0] = request.number
    integers = {
        InitInt.SEED: sampling.seed - 2 * _SIGN if sampling.seed >= _SIGN else sampling.seed,
        InitInt.TOP_K: sampling.top_k,
        InitInt.BUDGET: submit.max_tokens,
        InitInt.MIN_TOKENS: min(sampling.min_tokens, submit.max_tokens),
        InitInt.END_COUNT: len(ends),
        InitInt.BIAS_COUNT: len(bias),
        InitInt.TOP_LOGPROBS: sampling.logprobs,
        InitInt.PROMPT_LENGTH: request.prompt_length,
        InitInt.PREFIX: prefix,
    }
    floats = {
        InitFloat.TEMPERATURE: sampling.temperature,
        InitFloat.TOP_P: sampling.top_p,
        InitFloat.MIN_P: sampling.min_p,
        InitFloat.REPETITION: sampling.repetition_penalty,
        InitFloat.FREQUENCY: sampling.frequency_penalty,
        InitFloat.PRESENCE: sampling.presence_penalty,
    }
    for column, value in integers.items():
        frame.init_integers[column] = value
    for place, number in floats.items():
        frame.init_floats[place] = number
    frame.init_end_ids[: len(ends)] = ends
    if bias:
        frame.init_bias_ids[: len(bias)] = [token for token, _ in bias]
        frame.init_bias_values[: len(bias)] = [value for _, value in bias]
