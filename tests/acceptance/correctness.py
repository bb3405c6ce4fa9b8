"""Items about laws and draws, the list behind "Correctness includes", and how results are compared."""

from __future__ import annotations

from tests.acceptance.item import (
    COMPONENTS,
    DRAWS,
    GRAPHS,
    HISTORIES,
    LAW,
    PREFIXES,
    QWEN38,
    SCHEDULER,
    SERVICE,
    SYSTEM,
    TRANSACTION,
    WORKER,
    Item,
)

SAMPLING = (
    Item(
        "Qwen's checkpoint defaults are temperature 1.0, top-k 20, and top-p 0.95; explicit request values win",
        (QWEN38 + "test_core.py::test_defaults_and_alias_travel_in_the_core",),
    ),
    Item(
        "All chains use FlashInfer's rejection sampler: accept with min(1, p(token)/q(token)); on rejection, sample the"
        " normalized positive residual max(p-q,0), or sample the target bonus distribution after full acceptance",
        (
            LAW + "test_two_tokens_have_the_targets_joint_law",
            LAW + "test_all_ways_of_drafting_together_have_one_law",
            COMPONENTS + "test_acceptance.py::test_the_joint_law_of_two_tokens_is_the_targets",
        ),
    ),
    Item(
        "q must be the distribution that actually generated the proposal",
        (
            LAW + "test_the_same_test_rejects_a_law_that_the_drafts_were_not_drawn_from",
            COMPONENTS + "test_acceptance.py::test_the_same_test_rejects_a_biased_sampler",
        ),
    ),
    Item(
        "The target distribution reflects temperature, penalties, grammar and top-k/top-p/min-p filtering at each"
        " conditional prefix",
        (
            WORKER + "test_rounds.py::test_penalties_bias_and_filters_hold_on_draft_rows",
            HISTORIES + "test_prompt_counts_once_output_once_and_rejected_drafts_never",
        ),
        later="grammar masks: the grammar issue",
    ),
    Item(
        "A copied token has a point-mass proposal law: q(copy_token)=1, with zero mass elsewhere",
        (
            LAW + "test_copies_leave_every_seed_its_tokens",
            COMPONENTS + "test_acceptance.py::test_copies_are_invisible",
        ),
    ),
    Item(
        "Copy substitutions use that law at every temperature, including when replacing a native MTP proposal",
        (LAW + "test_a_point_mass_is_a_law_of_any_draft",),
    ),
    Item(
        "Store returned token IDs in persistent completion storage before graph pool reuse",
        (GRAPHS + "test_a_record_stays_until_its_frame_comes_round_again",),
    ),
    Item(
        "one-row FlashInfer calls so Philox subsequence zero is independent of packed lane position. Preserve this"
        " property for speculative requests",
        (DRAWS + "test_a_text_is_the_same_at_any_lane_and_in_any_company",),
    ),
    Item(
        "Draft randomness and target acceptance/correction randomness have separate declared domains",
        (
            DRAWS + "test_no_draw_is_used_twice",
            COMPONENTS + "test_philox.py::test_domains_and_seeds_have_streams_of_their_own",
        ),
    ),
    Item(
        "Reserve nonoverlapping ranges by converting that bound to the RNG API's offset units, and qualify the compiled"
        " kernel's progression",
        (
            DRAWS + "test_no_draw_is_used_twice",
            COMPONENTS + "test_philox.py::test_chain_rounds_never_share_a_draw",
        ),
        later="the compiled kernel: the GPU worker's issue",
    ),
)

CORRECTNESS = (
    Item(
        "Qualify every accepted count and prefix publication",
        (
            TRANSACTION + "test_every_accepted_prefix_at_every_width",
            PREFIXES + "test_a_row_of_64_tokens_has_63_pairs_and_three_open_raw_keys",
        ),
    ),
    Item(
        "all-accept/all-reject and every intermediate prefix; QSA groups of four and page boundaries of 64",
        (
            TRANSACTION + "test_every_accepted_prefix_over_groups_and_pages",
            TRANSACTION + "test_every_accepted_prefix_at_every_width",
            TRANSACTION + "test_learned_drafts_at_every_accepted_count",
        ),
    ),
    Item(
        "all graph buckets and padded lanes",
        (GRAPHS + "test_every_bucket_with_padded_lanes_continues_every_text",),
    ),
    Item(
        "width-eight to width-one transitions with eight preceding accepted inputs",
        (TRANSACTION + "test_eight_rows_then_one_with_eight_preceding_accepted_inputs",),
    ),
    Item(
        "cold/prefix-hit/branch continuation",
        (
            PREFIXES + "test_branches_share_a_page_that_no_round_writes",
            PREFIXES + "test_a_hit_has_the_state_and_the_drafts_of_a_cold_request",
            SYSTEM + "test_prefix_cache.py::test_a_prompt_sent_twice_says_the_same_from_its_last_boundary_on",
            SYSTEM + "test_prefix_cache.py::test_tails_of_one_prefix_share_it_and_say_what_they_would_alone",
        ),
    ),
    Item("image-conditioned prompts", later="no recipe takes images yet"),
    Item(
        "PLE history",
        (
            HISTORIES + "test_token_histories_are_of_what_was_consumed",
            HISTORIES + "test_each_verified_row_sees_its_own_candidate_prefix",
        ),
    ),
    Item(
        "EOS, stop and budget clipping",
        (
            TRANSACTION + "test_an_end_token_inside_an_accepted_run_clips_it",
            TRANSACTION + "test_the_budget_clips_an_accepted_run",
            SERVICE + "test_a_stop_string_ends_the_text_inside_accepted_drafts",
        ),
    ),
    Item(
        "penalties and RNG progression",
        (
            HISTORIES + "test_prompt_counts_once_output_once_and_rejected_drafts_never",
            DRAWS + "test_no_draw_is_used_twice",
        ),
    ),
    Item(
        "slot generations",
        (
            HISTORIES + "test_a_reused_slot_has_nothing_of_its_last_request",
            WORKER + "test_faults.py::test_a_stale_epoch_costs_only_its_lane",
        ),
    ),
    Item(
        "cancellation and the single-round submission barrier",
        (
            SERVICE + "test_a_cancelled_request_leaves_the_next_one_alone",
            SCHEDULER + "test_service.py::test_a_cancelled_request_ends_within_two_rounds",
            SCHEDULER + "test_service.py::test_no_more_rounds_are_queued_than_the_worker_takes",
            WORKER + "test_qwen38_lanes.py::test_a_cancelled_requests_slot_serves_the_next_at_once",
        ),
    ),
    Item(
        "grammar barriers",
        (SERVICE + "test_a_grammar_is_refused_by_its_name",),
        later="the grammar issue: there is no grammar yet, and requests for one are refused by name",
    ),
    Item(
        "snapshot/page pressure",
        (
            SCHEDULER + "test_rounds.py::test_preemption_takes_the_latest_and_the_text_goes_on",
            WORKER + "test_qwen38_lanes.py::test_a_preempted_request_goes_on_from_its_replayed_tokens",
            SCHEDULER + "test_prefix_cache.py::test_what_is_held_stays_and_the_least_recently_used_end_goes_first",
            SCHEDULER + "test_prefixes.py::test_rows_go_round_and_nobody_waits_for_one",
            SYSTEM + "test_prefix_cache.py::test_more_prefixes_than_pages_and_rows_come_and_go",
        ),
    ),
    Item(
        "Prompt counts are initialized once, generated counts advance once, and rejected proposals never enter"
        " committed state or public output",
        (
            HISTORIES + "test_prompt_counts_once_output_once_and_rejected_drafts_never",
            PREFIXES + "test_a_hit_is_drawn_with_its_own_seed_and_penalties",
        ),
    ),
    Item(
        "Every admitted graph must replay without allocation, compilation, recapture or Python callbacks",
        (GRAPHS + "test_replays_allocate_nothing_that_stays_and_move_no_buffer",),
        later="captured CUDA graphs: the GPU worker's issue",
    ),
    Item(
        "Poison shared scratch between calls; alternate graph families and capacities",
        (GRAPHS + "test_every_bucket_with_padded_lanes_continues_every_text",),
    ),
    Item(
        "verify no escaping output aliases volatile storage",
        (GRAPHS + "test_no_output_that_stays_lies_in_volatile_storage",),
    ),
    Item(
        "drain both execution and transfer streams before releasing owners",
        (SYSTEM + "test_draining.py::test_told_all_at_once_they_finish_what_runs_and_what_waits",),
        later="streams: the GPU worker's issue",
    ),
    Item(
        "Startup fails if weights, verification state, graph pool and reserved pages cannot fit",
        (
            GRAPHS + "test_a_core_that_cannot_fit_is_refused_unread",
            SYSTEM + "test_starting.py::test_a_core_that_does_not_fit_is_refused_with_its_bill",
        ),
    ),
    Item(
        "condition acceptance on draft depth, proposal source and workload category",
        (SERVICE + "test_what_answers_tell_by_source_is_what_the_scheduler_counts",),
        later="workloads: the measuring issue",
    ),
)

COMPARISONS = (
    Item(
        "Metadata and state transfers require exact equality",
        (
            PREFIXES + "test_a_hit_has_the_state_and_the_drafts_of_a_cold_request",
            PREFIXES + "test_a_row_outlives_the_request_that_gave_it",
        ),
    ),
    Item(
        "Deterministic plans require identical outputs",
        (
            WORKER + "test_qwen38_row_invariance.py::test_the_cut_of_a_text_changes_no_row_no_state_and_no_proposal",
            WORKER + "test_qwen38_row_invariance.py::test_batch_mates_do_not_change_a_row",
        ),
    ),
    Item(
        "Numerical acceptance requires component comparisons on identical operands, tolerances derived from measured"
        " arithmetic differences",
        (
            QWEN38 + "test_agreement.py::test_logits_and_streams_equal_transformers_however_the_text_is_cut",
            QWEN38 + "test_agreement.py::test_every_width_after_every_accepted_count_equals_transformers",
        ),
    ),
    Item(
        "Teacher-forced diagnostics retain full-vocabulary logits, relative L2 with the reference norm as denominator,"
        " top-10 overlap and FP32 KL(reference || actual)",
        (
            COMPONENTS + "test_diagnostics.py::test_relative_l2_divides_by_the_reference",
            QWEN38 + "test_teacher_forced.py::test_a_stage_differs_from_the_reference_as_the_reference_from_itself",
        ),
    ),
)
