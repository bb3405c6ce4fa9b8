"""Items about a round: proposals, the state transaction, and the state of targets, drafters and prefixes."""

from __future__ import annotations

from tests.acceptance.item import (
    COMPONENTS,
    DRAWS,
    HISTORIES,
    PREFIXES,
    QWEN38,
    SCHEDULER,
    SERVICE,
    SYSTEM,
    TRANSACTION,
    WORKER,
    Item,
)

PROPOSALS = (
    Item(
        "augments Qwen's learned MTP proposals with continuations from shared decoded history",
        (
            SERVICE + "test_every_source_is_offered_and_accepted_beside_the_others",
            WORKER + "test_qwen38_copies.py::test_every_split_between_copied_and_learned_drafts",
        ),
    ),
    Item(
        "Exact eight-token and four-token indexes match the active request's suffix, preferring eight-token matches and"
        " then the most recent occurrence",
        (SCHEDULER + "test_copies.py::test_ring_agrees_with_a_naive_search",),
    ),
    Item(
        "only validated completion outputs, including accepted drafts and target samples, extend it. Rejected proposals"
        " and failed completions do not",
        (SCHEDULER + "test_rounds.py::test_only_acknowledged_output_enters_ring_and_statistics",),
    ),
    Item(
        "Qualify feedback, target-hidden alignment, draft attention, routed/shared experts and logits against component"
        " operator references",
        (
            QWEN38 + "test_second_opinion.py::test_feedback",
            QWEN38 + "test_second_opinion_experts.py::test_plain_activations",
            QWEN38 + "test_agreement.py::test_recursive_proposals_feed_the_drafters_own_streams_back",
        ),
    ),
    Item(
        "Token IDs shift forward; hidden states and RoPE positions do not",
        (QWEN38 + "test_agreement.py::test_first_proposals_equal_teacher_forced_rows_whatever_was_proposed_before",),
    ),
    Item(
        "Reusable draft history must be absorbed from the actual target hidden states and accepted next-token IDs",
        (TRANSACTION + "test_learned_drafts_at_every_accepted_count",),
    ),
    Item(
        "Proposal-only; reset on round or request identity changes",
        (DRAWS + "test_only_recursive_proposals_reuse_a_selection",),
    ),
    Item(
        "Public QSA draft reuse omits selection work and must never be used in target verification",
        (DRAWS + "test_only_recursive_proposals_reuse_a_selection",),
    ),
    Item(
        "Proposal RNG and histories are separate from committed sampling state",
        (DRAWS + "test_proposals_leave_no_trace_in_committed_state",),
    ),
    Item(
        "The recovery tests compare this arithmetic with b12x checkpointed decode",
        (
            COMPONENTS + "test_gated_delta.py::test_recovery_of_every_prefix_equals_going_on_from_there",
            QWEN38 + "test_second_opinion_state.py::test_recovery_is_the_checkpoint_column_of_every_accepted_count",
        ),
    ),
)

TRANSACTIONS = (
    Item(
        "Each row sees exactly its causal candidate prefix",
        (HISTORIES + "test_each_verified_row_sees_its_own_candidate_prefix",),
    ),
    Item(
        "With a accepted drafts, ordinary chain verification consumes a+1 inputs and produces a+1 newly generated"
        " tokens",
        (TRANSACTION + "test_every_accepted_prefix_over_groups_and_pages",),
    ),
    Item(
        "Commit: clip at device-visible EOS or output budget",
        (
            TRANSACTION + "test_an_end_token_inside_an_accepted_run_clips_it",
            TRANSACTION + "test_the_budget_clips_an_accepted_run",
            COMPONENTS + "test_acceptance.py::test_an_end_token_or_the_budget_clips_whichever_comes_first",
        ),
    ),
    Item(
        "Advance consumed and generated counts by t, select the state after verification input t-1, and retain emitted"
        " token t-1 as pending",
        (
            TRANSACTION + "test_an_end_token_inside_an_accepted_run_clips_it",
            TRANSACTION + "test_every_accepted_prefix_at_every_width",
        ),
    ),
    Item(
        "emitting only d[0] consumes p, not d[0], even if later draft rows were verified",
        (TRANSACTION + "test_one_emitted_draft_consumes_the_pending_token_alone",),
    ),
    Item("A terminal token remains pending", (TRANSACTION + "test_an_end_token_inside_an_accepted_run_clips_it",)),
    Item(
        "Requests already at their limit execute no state transition",
        (TRANSACTION + "test_a_round_that_was_queued_behind_the_end_changes_nothing",),
    ),
    Item(
        "Generated, consumed and visible token counts are distinct",
        (
            TRANSACTION + "test_an_end_token_inside_an_accepted_run_clips_it",
            WORKER + "test_rounds.py::test_the_first_event_in_token_order_ends_a_request",
        ),
    ),
    Item(
        "Device terminal flags suppress any later queued round for that request",
        (
            TRANSACTION + "test_a_round_that_was_queued_behind_the_end_changes_nothing",
            WORKER + "test_rounds.py::test_a_finished_request_ignores_queued_rounds",
        ),
    ),
    Item(
        "Resource retirement waits for every referencing graph and transfer",
        (
            PREFIXES + "test_a_row_outlives_the_request_that_gave_it",
            SCHEDULER + "test_rounds.py::test_any_history_of_events_keeps_the_device_rules",
        ),
    ),
    Item(
        "Unaccepted rows remain private and unreachable",
        (
            HISTORIES + "test_rejected_rows_are_beyond_every_logical_length",
            WORKER + "test_qwen38_rejections.py::test_state_after_rejected_drafts_is_that_of_the_kept_rows_alone",
        ),
    ),
)

STATES = (
    Item(
        "Convolution and PLE buffers must retain all candidate histories until acceptance",
        (
            TRANSACTION + "test_every_accepted_prefix_over_groups_and_pages",
            COMPONENTS + "test_gated_delta.py::test_a_convolution_continues_over_every_accepted_count",
        ),
    ),
    Item(
        "PLE hashing reads committed history; a proposed token affects only the candidate prefix that contains it",
        (
            HISTORIES + "test_token_histories_are_of_what_was_consumed",
            HISTORIES + "test_each_verified_row_sees_its_own_candidate_prefix",
            COMPONENTS + "test_ngram_hash.py::test_a_text_cut_anywhere_has_the_same_ids",
        ),
    ),
    Item(
        "Inactive rows never update another request's state",
        (HISTORIES + "test_a_slot_that_takes_no_part_keeps_every_bit",),
    ),
    Item(
        "QSA may physically retain rejected KV and selector rows, but logical lengths, raw tags and interval anchors"
        " must exclude them",
        (
            HISTORIES + "test_rejected_rows_are_beyond_every_logical_length",
            COMPONENTS + "test_indexed_attention.py::test_a_copy_takes_only_what_the_prefix_has",
        ),
    ),
    Item(
        "Rejected writes cannot mutate an immutable shared page",
        (PREFIXES + "test_branches_share_a_page_that_no_round_writes",),
    ),
    Item(
        "Reserve private suffix pages, including boundary pages touched by a speculative window, before submission",
        (
            SCHEDULER + "test_rounds.py::test_any_history_of_events_keeps_the_device_rules",
            SCHEDULER + "test_pages.py::test_every_page_has_one_owner_and_none_is_lost",
        ),
    ),
    Item(
        "Reusable MTP history contains pairs through (h[P-2], x[P-1]): P-1 draft-cache entries",
        (PREFIXES + "test_a_row_of_64_tokens_has_63_pairs_and_three_open_raw_keys",),
    ),
    Item(
        "At P % 64 == 0, target QSA has no open four-token compression group, while the MTP cache has three entries in"
        " its open group. Its checkpoint must retain raw selector keys, tags, positions and anchor",
        (PREFIXES + "test_a_row_of_64_tokens_has_63_pairs_and_three_open_raw_keys",),
    ),
    Item(
        "A full prompt hit restores both model histories, samples p from the saved target sampling vector, and"
        " completes the MTP feedback pair from the saved pre-mixer tail",
        (
            PREFIXES + "test_a_hit_has_the_state_and_the_drafts_of_a_cold_request",
            WORKER + "test_qwen38_prefixes.py::test_a_prompt_that_was_said_before_is_not_computed_again",
        ),
    ),
    Item(
        "Request RNG and penalty state are initialized from the new request",
        (
            PREFIXES + "test_a_hit_is_drawn_with_its_own_seed_and_penalties",
            SYSTEM + "test_prefix_cache.py::test_penalties_over_a_cached_prefix_are_those_of_a_cold_request",
        ),
    ),
    Item(
        "Branches share immutable target and draft pages and own private suffix state",
        (PREFIXES + "test_branches_share_a_page_that_no_round_writes",),
    ),
    Item(
        "At a crossed 64-token boundary, publish only the state corresponding to an actually accepted consumed prefix",
        (
            PREFIXES + "test_a_boundary_that_was_not_reached_is_not_published",
            SYSTEM + "test_prefix_cache.py::test_a_boundary_crossed_inside_a_round_is_where_the_next_turn_starts",
            WORKER + "test_faults.py::test_a_boundary_inside_the_emitted_prefix_is_exported_and_one_beyond_is_not",
        ),
    ),
    Item(
        "Tentative device progress beyond a host-selected stop remains private, cannot publish snapshots",
        (SCHEDULER + "test_prefixes.py::test_output_is_published_when_it_is_acknowledged_and_not_beyond_a_stop",),
    ),
    Item(
        "Prefix publication cannot include unacknowledged continuation tokens",
        (SCHEDULER + "test_prefixes.py::test_what_is_acknowledged_after_the_end_is_published_too",),
    ),
)
