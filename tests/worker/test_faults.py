"""What a round refuses: torn, foreign and stale plans change nothing and say why; lanes beside them go on."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from recipes.components.model import Rows, StateBytes
from services.worker.arena import Bill
from services.worker.preparation import create_frames
from shared.errors import ContractBreach, FlareError, HistoryMissing, MemoryRefused, RowsLost
from shared.frames import FRAMES, Fault, Meta, plan_frame
from shared.messages.common import Sampling
from tests.fixtures.scripted.vocabulary import END_IDS
from tests.worker.host import Host, LanePlan
from tests.worker.test_rounds import ANSWER, GREEDY, finish, plain, prompt


def running(host: Host) -> None:
    host.start(0, prompt(f"say:{ANSWER}"), GREEDY, 40, END_IDS)


@pytest.mark.parametrize("fault", [Fault.TORN_PLAN, Fault.UNEXPECTED_PLAN])
def test_a_torn_or_foreign_plan_is_a_no_op_with_its_error_bit(copies: Host, fault: Fault) -> None:
    running(copies)
    before = copies.catalog.state.consumed.copy()
    graph = copies.manifest.index_of("speculative", 1, 1)
    plan = copies.plan(graph)
    copies.fill_lanes(plan, [LanePlan(0)])
    plan.tail[0] += 2
    if fault == Fault.UNEXPECTED_PLAN:
        plan.head[0] += 2
    assert copies.replay(graph)[0].faults == fault
    assert (copies.catalog.state.consumed == before).all()
    assert copies.round([LanePlan(0)], 1)[0][Meta.EMITTED] == 1


def test_a_frame_that_nobody_wrote_is_for_no_round(copies: Host) -> None:
    """Round 0 of a fresh worker must not take zeroed memory for its plan."""
    assert copies.catalog.counter == 0
    found = copies.replay(copies.manifest.index_of("init", 1, 0))
    assert {record.faults for record in found.values()} == {Fault.UNEXPECTED_PLAN}


def test_a_worker_makes_frames_for_no_round(copies: Host) -> None:
    made = create_frames(copies.manifest, 0xB1A)
    try:
        frames = [plan_frame(made.plan_layout, made.plan.payload, index) for index in range(FRAMES)]
        assert [(int(frame.head[0]), int(frame.tail[0])) for frame in frames] == [(-1, -1)] * FRAMES
    finally:
        made.close()


def test_a_plan_for_another_graph_is_unexpected(copies: Host) -> None:
    running(copies)
    plan = copies.plan(copies.manifest.index_of("speculative", 1, 8))
    copies.fill_lanes(plan, [LanePlan(0)])
    assert copies.replay(copies.manifest.index_of("speculative", 1, 1))[0].faults == Fault.UNEXPECTED_PLAN


def test_a_stale_epoch_costs_only_its_lane(copies: Host) -> None:
    running(copies)
    copies.start(1, prompt("say:neighbour"), GREEDY, 40, END_IDS)
    copies.epochs[0] += 7
    found = copies.round([LanePlan(0), LanePlan(1)], 1)
    assert found[0].faults == Fault.STALE_EPOCH
    assert found[0][Meta.EMITTED] == 0
    assert found[1][Meta.EMITTED] == 1


def lose(host: Host, error: FlareError, fault: Fault, *slots: int) -> None:
    """The next forward cannot compute the rows of these slots: on a CPU it raises, on a device it leaves bits."""
    model = host.catalog.model
    own = vars(model)

    def forward(rows: Rows) -> Tensor:
        del own["forward"]
        raise error

    own["forward"] = forward
    peer = getattr(host.catalog, "peer", None)
    if peer is not None:
        peer.catalog.model.faults[list(slots)] = fault


@pytest.mark.parametrize(
    ("error", "fault"),
    [(RowsLost("gone"), Fault.ROW_SERVER), (HistoryMissing("overwritten"), Fault.MISSING_HISTORY)],
)
def test_rows_that_cannot_be_computed_cost_their_round_and_nothing_else(
    copies: Host, error: FlareError, fault: Fault
) -> None:
    running(copies)
    copies.start(1, prompt("say:neighbour"), GREEDY, 40, END_IDS)
    before = copies.catalog.state.consumed.copy()
    lose(copies, error, fault, 0, 1)
    found = copies.round([LanePlan(0), LanePlan(1)], 1)
    assert [(found[slot].faults, found[slot][Meta.EMITTED], found[slot][Meta.WIDTH]) for slot in (0, 1)] == [
        (fault, 0, 1),
        (fault, 0, 1),
    ]
    assert (copies.catalog.state.consumed == before).all()
    assert [record[Meta.EMITTED] for record in copies.round([LanePlan(0), LanePlan(1)], 1).values()] == [1, 1]
    copies.init(2, 3, GREEDY, 8, END_IDS)
    lose(copies, error, fault, 2)
    lost = copies.chunk(2, 0, (1, 2), final=0)
    assert (lost.faults, lost[Meta.WIDTH], lost[Meta.CONSUMED]) == (fault, 2, 0)
    again = copies.chunk(2, 0, (1, 2, 5), final=1)
    assert (again.faults, again[Meta.CONSUMED], again[Meta.EMITTED]) == (Fault.NONE, 3, 1)


def test_a_slot_that_does_not_exist_is_left_alone(copies: Host) -> None:
    running(copies)
    copies.epochs[9] = 1
    graph = copies.manifest.index_of("speculative", 2, 1)
    plan = copies.plan(graph)
    copies.fill_lanes(plan, [LanePlan(0)])
    plan.lanes[0], plan.slot[1] = 2, 9
    assert copies.replay(graph)[0][Meta.EMITTED] == 1


def test_chunks_must_continue_what_was_consumed_and_hold_tokens_of_the_vocabulary(copies: Host) -> None:
    copies.init(0, 8, GREEDY, 8, END_IDS)
    assert copies.chunk(0, 4, (1, 2), final=0).faults == Fault.UNEXPECTED_PLAN
    assert copies.chunk(0, 0, (1, 100_000), final=0).faults == Fault.BAD_TOKEN
    assert copies.chunk(0, 0, (1, -1), final=0).faults == Fault.BAD_TOKEN
    assert copies.chunk(0, 0, (1, 2), final=0).faults == Fault.NONE


def test_a_lane_before_its_prompt_is_done_is_refused(copies: Host) -> None:
    copies.init(0, 8, GREEDY, 8, END_IDS)
    assert copies.round([LanePlan(0)], 1)[0].faults == Fault.UNEXPECTED_PLAN


def test_the_catalog_is_frozen_after_capture(copies: Host) -> None:
    with pytest.raises(ContractBreach):
        copies.catalog.capture()
    with pytest.raises(ContractBreach):
        copies.catalog.replay(len(copies.manifest.graphs))


def test_recomputation_after_a_preemption_goes_on_with_the_same_text(copies: Host) -> None:
    """Prompt and output are fed again under a new epoch; draws are keyed by position, penalties counted once."""
    sampling = Sampling(temperature=1.2, seed=9, frequency_penalty=0.4, repetition_penalty=1.2)
    text = "free running text"
    expected = plain(copies, text, sampling)
    for cut in (1, 2, 17):
        first = copies.start(0, prompt(text), sampling, 40, END_IDS)
        tokens = list(first.tokens)
        while len(tokens) < cut:
            tokens.extend(copies.round([LanePlan(0)], 1)[0].tokens)
        history = (*prompt(text), *tokens[:-1])
        copies.init(1, len(prompt(text)), sampling, 40, END_IDS)
        record = copies.chunk(1, 0, history, final=2, pending=tokens[-1])
        assert record.tokens == ()
        assert record[Meta.GENERATED] == len(tokens)
        rest, _ = finish(copies, record, 1, slot=1)
        assert tokens + rest == expected


def test_a_snapshot_restored_into_another_slot_resumes_with_the_first_token(copies: Host) -> None:
    text = f"say:{ANSWER}"
    copies.init(0, len(prompt(text)), GREEDY, 40, END_IDS)
    first = copies.chunk(0, 0, prompt(text), final=1, export=2)
    copies.init(1, len(prompt(text)), GREEDY, 40, END_IDS)
    assert copies.restored(1, 2, len(prompt(text)))[Meta.CONSUMED] == len(prompt(text))
    assert copies.resumed(1).tokens == first.tokens


def test_a_restore_that_finds_another_prefix_than_planned_changes_nothing(copies: Host) -> None:
    """B08: never a hit on state that is not there."""
    text = prompt(f"say:{ANSWER}")
    copies.init(0, len(text), GREEDY, 40, END_IDS)
    copies.chunk(0, 0, text, final=1, export=2)
    for row, total in ((2, len(text) - 1), (1, len(text)), (99, len(text)), (-1, len(text))):
        copies.init(1, len(text), GREEDY, 40, END_IDS)
        assert copies.restored(1, row, total).faults == Fault.WRONG_PREFIX
        assert copies.catalog.state.consumed[1] == 0
    assert copies.chunk(1, 0, text[:3], final=0).faults == Fault.NONE
    assert copies.restored(1, 2, len(text)).faults == Fault.WRONG_PREFIX, "the slot holds something already"


def test_what_a_restore_notes_lies_in_the_prefix_and_in_the_vocabulary(copies: Host) -> None:
    text = prompt(f"say:{ANSWER}")
    copies.init(0, len(text), GREEDY, 40, END_IDS)
    copies.chunk(0, 0, text, final=1, export=2)
    for note, start, fault in (
        (text, 1, Fault.UNEXPECTED_PLAN),
        (text[:4], -1, Fault.UNEXPECTED_PLAN),
        ((3, 100_000), 0, Fault.BAD_TOKEN),
        ((-2,), 0, Fault.BAD_TOKEN),
        (text, 0, Fault.NONE),
    ):
        copies.init(1, len(text), GREEDY, 40, END_IDS)
        assert copies.restored(1, 2, len(text), note, start).faults == fault


def test_penalties_over_a_restored_prefix_are_those_of_a_cold_request(copies: Host) -> None:
    """Prompt and, after a preemption, output: noted in two stretches, counted once."""
    sampling = Sampling(temperature=1.2, seed=9, frequency_penalty=0.4, presence_penalty=0.3, repetition_penalty=1.2)
    words = "free running text"
    expected = plain(copies, words, sampling)
    history = (*prompt(words), *expected[:10])
    copies.init(0, len(prompt(words)), sampling, 40, END_IDS)
    copies.chunk(0, 0, history, final=0, export=1)
    copies.init(1, len(prompt(words)), sampling, 40, END_IDS)
    copies.restored(1, 1, len(history), history[:9])
    copies.restored(1, -1, len(history), history[9:], start=9)
    state = copies.catalog.state
    assert state.values[1].penalised
    assert torch.equal(state.counts[1], state.counts[0])
    assert torch.equal(state.seen[1], state.seen[0])
    assert int(state.counts[1].sum()) == 10


def test_a_prefix_of_pages_alone_continues_without_a_row(copies: Host) -> None:
    """The second request has the first one's pages: its first chunk starts behind them."""
    text = prompt("say:" + "x" * 80)
    first = copies.start(0, text, GREEDY, 100, END_IDS)
    rest, _ = finish(copies, first, 1)
    copies.init(0, len(text), GREEDY, 100, END_IDS, prefix=64)
    assert copies.chunk(0, 60, text[60:], final=1).faults == Fault.UNEXPECTED_PLAN
    copies.init(0, len(text), GREEDY, 100, END_IDS, prefix=64)
    again = copies.chunk(0, 64, text[64:], final=1)
    assert again.tokens == first.tokens
    assert finish(copies, again, 1)[0] == rest


def test_pages_alone_are_refused_where_state_lies_beside_them(learned: Host) -> None:
    with pytest.raises(ContractBreach, match="snapshot row"):
        learned.init(0, 80, GREEDY, 8, END_IDS, prefix=64)


def test_a_boundary_inside_the_emitted_prefix_is_exported_and_one_beyond_is_not(learned: Host) -> None:
    text = f"d1:7/5;say:{ANSWER}"
    for ahead in range(1, 9):
        record = learned.start(0, prompt(text), GREEDY, 40, END_IDS)
        learned.catalog.snapshots.clear()
        boundary = record[Meta.CONSUMED] + ahead
        after = learned.round([LanePlan(0, 8, export_slot=1, export_boundary=boundary)], 8)[0]
        assert after[Meta.ACCEPTED] == 5
        expected = boundary if ahead <= 6 else -1
        assert learned.catalog.snapshots.consumed[1] == expected


def test_a_core_that_does_not_fit_is_refused_with_its_bill(copies: Host) -> None:

    bill = Bill((StateBytes("weights", 3 << 30), StateBytes("pages", 1 << 30)), 1 << 30, 4 << 30)
    with pytest.raises(MemoryRefused, match=r"weights +3072\.0 MiB(?s:.)*needed +5120\.0 MiB"):
        bill.check()
