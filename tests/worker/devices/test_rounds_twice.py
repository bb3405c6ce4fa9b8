"""The tests of the CPU's rounds once more, over a twin: every plan goes to the device's rounds too."""

from __future__ import annotations

import pytest

from shared.messages.common import Sampling
from tests.worker import test_faults as faults
from tests.worker import test_rounds as rounds
from tests.worker import test_scored_prompts as scored
from tests.worker.host import Host

test_torn_plans = faults.test_a_torn_or_foreign_plan_is_a_no_op_with_its_error_bit
test_foreign_graphs = faults.test_a_plan_for_another_graph_is_unexpected
test_stale_epochs = faults.test_a_stale_epoch_costs_only_its_lane
test_foreign_slots = faults.test_a_slot_that_does_not_exist_is_left_alone
test_bad_chunks = faults.test_chunks_must_continue_what_was_consumed_and_hold_tokens_of_the_vocabulary
test_unfinished_prompts = faults.test_a_lane_before_its_prompt_is_done_is_refused
test_exported_boundaries = faults.test_a_boundary_inside_the_emitted_prefix_is_exported_and_one_beyond_is_not
test_unwritten_frames = faults.test_a_frame_that_nobody_wrote_is_for_no_round
test_continuations = rounds.test_a_continuation_written_before_the_round_ahead_of_it_is_sliced_or_dropped
test_finished_requests = rounds.test_a_finished_request_ignores_queued_rounds
test_minimum_length = rounds.test_minimum_length_forbids_drafted_end_tokens
test_log_probabilities = rounds.test_log_probabilities_are_one_per_token_and_equal_to_off
test_scored_prompts = scored.test_a_scored_prompt_tells_what_generating_it_told
test_bad_scored_chunks = scored.test_a_scored_chunk_needs_a_token_behind_it_and_draws_none
test_mixed_rounds = rounds.test_a_mixed_graph_decodes_beside_a_prompt_chunk


@pytest.mark.parametrize("width", [2, 5])
def test_learned_drafts(learned: Host, width: int) -> None:
    rounds.test_learned_drafts_with_every_accepted_count_emit_what_decoding_does(learned, width)


@pytest.mark.parametrize(("stop_at", "budget"), [(0, 1), (3, 8), (7, 8), (4, 4), (5, 3)])
def test_endings(learned: Host, stop_at: int, budget: int) -> None:
    rounds.test_the_first_event_in_token_order_ends_a_request(learned, stop_at, budget)


def test_penalties(learned: Host, copies: Host) -> None:
    sampling = Sampling(temperature=1.0, min_p=0.3, seed=4, presence_penalty=0.7)
    rounds.test_penalties_bias_and_filters_hold_on_draft_rows(learned, copies, sampling)
