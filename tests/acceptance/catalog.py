"""Items about a core: its graphs and ways of serving, its weights, tables and memory."""

from __future__ import annotations

from tests.acceptance.item import (
    COMPONENTS,
    GRAPHS,
    HISTORIES,
    QWEN38,
    RECIPES,
    SCHEDULER,
    SYSTEM,
    TRANSACTION,
    Item,
)

CHECKPOINT = (
    Item(
        "4,637 tensors, 1,596,720,640 bytes",
        (QWEN38 + "test_checkpoint.py::test_full_geometry_validates_and_the_drafter_is_exactly_the_published_one",),
    ),
    Item(
        "the mtp.layers.48 quantization alias is explicit metadata",
        (QWEN38 + "test_core.py::test_defaults_and_alias_travel_in_the_core",),
    ),
    Item(
        "The loader preserves the W4A16 experts and BF16 tensors",
        (
            QWEN38 + "test_activation_policy.py::test_the_targets_experts_obey_and_the_drafters_stay_w4a16",
            QWEN38 + "test_core.py::test_tensors_are_copied_bit_for_bit",
        ),
    ),
    Item(
        "The target's FP32 recurrent matrices occupy 108 MiB per saved verification position",
        (
            QWEN38 + "test_memory.py::test_single_sizes_are_the_designs",
            QWEN38 + "test_memory.py::test_the_columns_that_the_compact_recurrence_saves_are_the_designs",
        ),
    ),
    Item(
        "Preparation reports exact persistent, graph-pool and scratch costs before allocating KV pages",
        (QWEN38 + "test_memory.py::test_the_cpus_bill_is_what_its_tensors_take",),
        later="graph pools: the GPU worker's issue",
    ),
)

WAYS_OF_SERVING = (
    Item(
        "Ignition prepares the recipe's learned drafter unless --no-mtp is given",
        (RECIPES + "test_ways_of_serving.py::test_a_drafter_is_in_the_core_unless_it_was_not_wanted",),
    ),
    Item(
        "Unless it was exported with --mtp-only, a core also captures ordinary prefill, decode, resume, and"
        " prefix-cache operations without draft computation or state maintenance",
        (
            COMPONENTS + "test_capacity.py::test_mtp_only_has_no_ordinary_graph",
            SCHEDULER + "test_graphs.py::test_a_core_of_mtp_only_cannot_serve_ordinarily",
        ),
    ),
    Item(
        "flare run --mtp-draft-tokens 0 selects those operations and disables speculative scheduling",
        (
            RECIPES + "test_ways_of_serving.py::test_options_choose_the_graphs",
            SYSTEM + "test_qwen38.py::test_ordinary_serving_of_the_same_core_says_the_same",
        ),
    ),
    Item(
        "ignition export --mtp-draft-tokens 0 instead prepares only width-one speculative rounds, which retain"
        " draft state",
        (COMPONENTS + "test_capacity.py::test_no_draft_tokens_prepare_speculative_rounds_of_width_one",),
    ),
    Item(
        "speculative_widths may be any increasing set of widths that includes one, so the prepared draft counts need"
        " not be contiguous",
        (COMPONENTS + "test_capacity.py::test_odd_and_missing_widths_are_prepared_as_they_were_chosen",),
    ),
    Item(
        "speculative_fixed_width=4 selects three speculative graphs at runtime",
        (SCHEDULER + "test_graphs.py::test_fixed_width_four_selects_three_graphs_at_concurrency_four",),
    ),
    Item(
        "Fixed drafting uses the fixed width at each batch capacity where the speculative token capacity admitted that"
        " shape, and width one elsewhere",
        (SCHEDULER + "test_graphs.py::test_fixed_drafting_is_of_width_one_where_the_capacity_did_not_admit_the_shape",),
    ),
    Item(
        "Graphs declare their serving mode through speculation_enabled; shared operations leave the field absent",
        (COMPONENTS + "test_capacity.py::test_both_ways_of_serving_have_prompt_graphs_of_their_own",),
    ),
)

CATALOG = (
    Item(
        "With concurrency four and five drafts, every batch and width fits: eighteen speculative graphs",
        (
            QWEN38 + "test_core.py::test_concurrency_four_and_five_drafts_give_eighteen_speculative_graphs",
            COMPONENTS + "test_capacity.py::test_concurrency_four_and_five_drafts_give_eighteen_speculative_graphs",
        ),
    ),
    Item(
        "Adaptive width-one rounds continue absorbing target feedback into the MTP cache so requests can resume"
        " drafting when concurrency falls",
        (TRANSACTION + "test_eight_rows_then_one_with_eight_preceding_accepted_inputs",),
    ),
    Item(
        "Masked positions cannot write KV or commit request state",
        (HISTORIES + "test_rows_beyond_the_ceiling_write_nothing",),
    ),
    Item(
        "Padding changes capacity, not causal history",
        (GRAPHS + "test_every_bucket_with_padded_lanes_continues_every_text",),
    ),
    Item(
        "their operation identifiers 10, 11, and 13 are reserved in helios/proto/runtime_core.proto, and Helios rejects"
        " a prepared contract that declares them",
        ("tests/shared/test_manifest.py::test_stand_alone_proposal_and_verification_are_refused",),
    ),
    Item(
        "ABI6 uses two transfer frames, each containing one int64 record per prepared request slot with 16 metadata"
        " fields",
        (
            GRAPHS + "test_a_record_stays_until_its_frame_comes_round_again",
            "tests/shared/test_frames.py::test_a_record_has_sixteen_metadata_and_eight_token_fields",
        ),
    ),
)
