"""Triton kernel of admission: the state row of a request that an init plan describes, and the empty record of its slot.

`DeviceState.admit` is the reference. Many programs: a row's marks and counts of the whole vocabulary are cleared.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from recipes.components.device_philox import signed
from recipes.components.device_state import FLOATS, WORDS, Word
from services.worker.devices.chunk_kernels import empty_notes, put_note
from services.worker.devices.lane_kernels import N_WORDS, plan_fault
from shared.frames import MAXIMUM_BIAS, MAXIMUM_END_IDS, Fault, InitFloat, InitInt, Status


def _constant(value: int) -> tl.constexpr:
    return tl.constexpr(int(value))


ROW, ROW_PADDED, FLOATS_HERE, GIVEN_FLOATS = (
    _constant(WORDS),
    _constant(32),
    _constant(FLOATS),
    _constant(len(InitFloat)),
)
ENDS, BIASES, BIASES_PADDED = _constant(MAXIMUM_END_IDS), _constant(MAXIMUM_BIAS), _constant(512)
W_EPOCH, W_REQUEST, W_PENDING, W_PREVIOUS = (
    _constant(Word.EPOCH),
    _constant(Word.REQUEST),
    _constant(Word.PENDING),
    _constant(Word.PREVIOUS),
)
W_STATUS, W_PENALISED, W_KEYS = _constant(Word.STATUS), _constant(Word.PENALISED), _constant(Word.DRAFT_KEY)
RUNNING, BAD_SLOT = _constant(Status.RUNNING), _constant(Fault.BAD_SLOT)
I_SEED, I_ENDS, I_BIASES = _constant(InitInt.SEED), _constant(InitInt.END_COUNT), _constant(InitInt.BIAS_COUNT)
F_REPETITION, F_FREQUENCY, F_PRESENCE = (
    _constant(InitFloat.REPETITION),
    _constant(InitFloat.FREQUENCY),
    _constant(InitFloat.PRESENCE),
)
GOLDEN, MIX_1, MIX_2 = (
    _constant(signed(0x9E3779B97F4A7C15)),
    _constant(signed(0xBF58476D1CE4E5B9)),
    _constant(signed(0x94D049BB133111EB)),
)
W_CONSUMED, I_PREFIX = _constant(Word.CONSUMED), _constant(InitInt.PREFIX)
W_BUDGET, I_BUDGET = _constant(Word.BUDGET), _constant(InitInt.BUDGET)
W_PROMPT, I_PROMPT = _constant(Word.PROMPT_LENGTH), _constant(InitInt.PROMPT_LENGTH)
W_LOGPROBS, I_LOGPROBS = _constant(Word.TOP_LOGPROBS), _constant(InitInt.TOP_LOGPROBS)
W_TOP_K, I_TOP_K = _constant(Word.TOP_K), _constant(InitInt.TOP_K)
W_MINIMUM, I_MINIMUM = _constant(Word.MIN_TOKENS), _constant(InitInt.MIN_TOKENS)
W_ENDS, W_BIASES = _constant(Word.END_COUNT), _constant(Word.BIAS_COUNT)


@triton.jit
def _shifted(words: tl.tensor, BITS: tl.constexpr) -> tl.tensor:
    """Logical right shift of int64."""
    return (words.to(tl.uint64, bitcast=True) >> BITS).to(tl.int64, bitcast=True)


@triton.jit
def _stream_keys(seed: tl.tensor, domain: tl.tensor) -> tl.tensor:
    """Philox keys int64 of a seed's domains: `device_philox.stream_keys`."""
    z = seed + domain.to(tl.int64) * GOLDEN
    z = (z ^ _shifted(z, 30)) * MIX_1
    z = (z ^ _shifted(z, 27)) * MIX_2
    return z ^ _shifted(z, 31)


@triton.jit
def _admit_row(
    plan: tl.tensor, words: tl.tensor, slots: tl.tensor, slot: tl.tensor, V: tl.tensor, P_EPOCH: tl.constexpr,
    P_REQUEST: tl.constexpr, P_INTEGERS: tl.constexpr, P_FLOATS: tl.constexpr, P_ENDS: tl.constexpr,
    P_BIASES: tl.constexpr, P_VALUES: tl.constexpr,
) -> None:  # fmt: skip
    """All of a state row but what is as long as the vocabulary."""
    integers, floats = plan + P_INTEGERS, (plan + P_FLOATS).to(tl.pointer_type(tl.float32))
    at = tl.arange(0, ROW_PADDED)
    told = tl.where((at == W_PENDING) | (at == W_PREVIOUS), -1, tl.where(at == W_STATUS, RUNNING, 0)).to(tl.int64)
    told = tl.where(at == W_EPOCH, tl.load(plan + P_EPOCH), tl.where(at == W_REQUEST, tl.load(plan + P_REQUEST), told))
    told = tl.where(at == W_CONSUMED, tl.load(integers + I_PREFIX), told)
    told = tl.where(at == W_BUDGET, tl.load(integers + I_BUDGET), told)
    told = tl.where(at == W_PROMPT, tl.load(integers + I_PROMPT), told)
    told = tl.where(at == W_LOGPROBS, tl.load(integers + I_LOGPROBS), told)
    told = tl.where(at == W_TOP_K, tl.load(integers + I_TOP_K), told)
    told = tl.where(at == W_MINIMUM, tl.load(integers + I_MINIMUM), told)
    told = tl.where(at == W_ENDS, tl.load(integers + I_ENDS), told)
    told = tl.where(at == W_BIASES, tl.load(integers + I_BIASES), told)
    plain = (tl.load(floats + F_REPETITION) == 1.0) & (tl.load(floats + F_FREQUENCY) == 0.0)
    plain = plain & (tl.load(floats + F_PRESENCE) == 0.0)
    told = tl.where(at == W_PENALISED, (plain == 0).to(tl.int64), told)
    keys = _stream_keys(tl.load(integers + I_SEED) + at * 0, at - W_KEYS + 1)
    told = tl.where((at >= W_KEYS) & (at < W_KEYS + 3), keys, told)
    tl.store(words + slot * ROW + at, told, mask=at < ROW)
    column = tl.arange(0, FLOATS_HERE)
    given = column < GIVEN_FLOATS
    tl.store(slots.floats + slot * FLOATS_HERE + column, tl.load(floats + column, mask=given), mask=given)
    end = tl.arange(0, ENDS)
    ids = tl.load((plan + P_ENDS).to(tl.pointer_type(tl.int32)) + end)
    tl.store(slots.end_ids + slot * ENDS + end, tl.where(end < tl.load(integers + I_ENDS), ids, -1))
    bias = tl.arange(0, BIASES_PADDED)
    real = bias < BIASES
    ids = tl.load((plan + P_BIASES).to(tl.pointer_type(tl.int32)) + bias, mask=real, other=0)
    tl.store(slots.bias_ids + slot * BIASES + bias, tl.where(bias < tl.load(integers + I_BIASES), ids, V), mask=real)
    value = tl.load((plan + P_VALUES).to(tl.pointer_type(tl.float32)) + bias, mask=real, other=0.0)
    tl.store(slots.bias_values + slot * BIASES + bias, value, mask=real)


@triton.jit(do_not_specialize=["GRAPH", "V", "SLOTS"])
def admit(
    plan: tl.tensor, counter: tl.tensor, notes: tl.tensor, slots: tl.tensor, admitted: tl.tensor, GRAPH: tl.tensor,
    V: tl.tensor, SLOTS: tl.tensor, P_HEAD: tl.constexpr, P_TAIL: tl.constexpr, P_GRAPH: tl.constexpr,
    P_SLOT: tl.constexpr, P_EPOCH: tl.constexpr, P_REQUEST: tl.constexpr, P_INTEGERS: tl.constexpr,
    P_FLOATS: tl.constexpr, P_ENDS: tl.constexpr, P_BIASES: tl.constexpr, P_VALUES: tl.constexpr,
    BLOCK: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """Resets a slot for the request of a good plan; `admitted` int64 [1] is the slot, or -1. Offsets are in words."""
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    fault = plan_fault(plan, counter, GRAPH, P_HEAD, P_TAIL, P_GRAPH)
    slot = tl.load(plan + P_SLOT)
    exists = (slot >= 0) & (slot < SLOTS)
    fault = tl.where((fault == 0) & (exists == 0), BAD_SLOT, fault)
    taken = fault == 0
    if tl.program_id(0) == 0:
        empty_notes(notes, fault, SLOTS)
        tl.store(admitted, tl.where(taken, slot, -1))
        if taken:
            put_note(notes + slot * N_WORDS, slot * 0, slot * 0)
            _admit_row(plan, slots.words, slots, slot, V, P_EPOCH, P_REQUEST, P_INTEGERS, P_FLOATS, P_ENDS, P_BIASES,
                       P_VALUES)  # fmt: skip
    if taken:
        token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        place = slot * V + token
        tl.store(slots.seen + place, (token * 0).to(tl.uint8), mask=token < V)
        tl.store(slots.counts + place, token * 0, mask=token < V)
