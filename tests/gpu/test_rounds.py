"""The tests of the CPU's rounds and faults once more: every plan goes to rounds captured on the card too.

Same bodies, over a twin that compares each record and all slot state. One catalog serves all tests of a recipe, so that
graph families and capacities alternate, while tests empty slots and never capture again.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fixtures.scripted.recipe import COPIES, SCRIPTED
from tests.gpu.hosts import Hosts
from tests.worker import test_faults as faults
from tests.worker import test_rounds as rounds
from tests.worker.host import Host

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    made = Hosts(tmp_path_factory.mktemp("hosts"))
    yield made
    made.close()


@pytest.fixture
def learned(hosts: Hosts) -> Host:
    """T1 with D1."""
    return hosts.empty(SCRIPTED)


@pytest.fixture
def copies(hosts: Hosts) -> Host:
    """T1 alone."""
    return hosts.empty(COPIES)


test_learned_drafts = rounds.test_learned_drafts_with_every_accepted_count_emit_what_decoding_does
test_copied_drafts = rounds.test_copies_leave_sampled_text_as_it_is_at_every_accepted_count
test_continuations = rounds.test_a_continuation_written_before_the_round_ahead_of_it_is_sliced_or_dropped
test_endings = rounds.test_the_first_event_in_token_order_ends_a_request
test_finished_requests = rounds.test_a_finished_request_ignores_queued_rounds
test_minimum_length = rounds.test_minimum_length_forbids_drafted_end_tokens
test_penalties = rounds.test_penalties_bias_and_filters_hold_on_draft_rows
test_log_probabilities = rounds.test_log_probabilities_are_one_per_token_and_equal_to_off
test_lanes = rounds.test_lanes_do_not_see_each_other
test_mixed_rounds = rounds.test_a_mixed_graph_decodes_beside_a_prompt_chunk

test_torn_plans = faults.test_a_torn_or_foreign_plan_is_a_no_op_with_its_error_bit
test_foreign_graphs = faults.test_a_plan_for_another_graph_is_unexpected
test_stale_epochs = faults.test_a_stale_epoch_costs_only_its_lane
test_foreign_slots = faults.test_a_slot_that_does_not_exist_is_left_alone
test_bad_chunks = faults.test_chunks_must_continue_what_was_consumed_and_hold_tokens_of_the_vocabulary
test_unfinished_prompts = faults.test_a_lane_before_its_prompt_is_done_is_refused
test_preemptions = faults.test_recomputation_after_a_preemption_goes_on_with_the_same_text
test_snapshots = faults.test_a_snapshot_restored_into_another_slot_resumes_with_the_first_token
test_wrong_prefixes = faults.test_a_restore_that_finds_another_prefix_than_planned_changes_nothing
test_restored_notes = faults.test_what_a_restore_notes_lies_in_the_prefix_and_in_the_vocabulary
test_restored_penalties = faults.test_penalties_over_a_restored_prefix_are_those_of_a_cold_request
test_prefixes_of_pages = faults.test_a_prefix_of_pages_alone_continues_without_a_row
test_exported_boundaries = faults.test_a_boundary_inside_the_emitted_prefix_is_exported_and_one_beyond_is_not


def test_unwritten_frames(hosts: Hosts) -> None:
    faults.test_a_frame_that_nobody_wrote_is_for_no_round(hosts.fresh(COPIES))


def test_a_frozen_catalog(hosts: Hosts) -> None:
    faults.test_the_catalog_is_frozen_after_capture(hosts.empty(COPIES))
