"""What a round refuses: torn, foreign and stale plans change nothing and say why; lanes beside them go on."""

from __future__ import annotations

import pytest

from recipes.components.model import StateBytes
from services.worker.arena import Bill
from shared.errors import ContractBreach, MemoryRefused
from shared.frames import Fault, Meta
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
    graph = copies.manifest.index_of("restore", 1, 0)
    plan = copies.plan(graph)
    copies.fill_chunk(plan, 1, 0, (), 0, -1, -1)
    plan.snapshot_row[0] = 2
    assert copies.replay(graph)[1][Meta.CONSUMED] == len(prompt(text))
    graph = copies.manifest.index_of("resume", 1, 0)
    copies.fill_chunk(copies.plan(graph), 1, 0, (), 0, -1, -1)
    assert copies.replay(graph)[1].tokens == first.tokens


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
