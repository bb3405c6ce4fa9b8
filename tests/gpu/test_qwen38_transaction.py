"""The state transaction on the card: bodies of tests/acceptance over captured rounds of the tiny Qwen3.8, in float32.

The core is theirs, with the widths that these tests ask for; its experts take unrounded activations. Scratch of the
rounds is poisoned with everything else that a round may not read.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
import torch

from recipes.declaration import LoadConfig, PreparationConfig
from recipes.qwen38.device_core import load_core
from shared.frames import FRAMES, completion_frame, plan_frame
from shared.manifest import Manifest, read
from tests.acceptance import test_histories as histories
from tests.acceptance import test_transaction as transaction
from tests.acceptance.cores import agreeing, small_architecture, write_core
from tests.acceptance.test_transaction import Cold
from tests.gpu.captured import CUDA, CudaPeer
from tests.gpu.qwen38_host import DeviceHost
from tests.gpu.scratch import Scratch
from tests.worker.devices.alone import AloneCatalog
from tests.worker.devices.twin import layouts_of

pytestmark = pytest.mark.gpu

WIDTHS = (1, 2, 5, 8)


def small(manifest: Manifest) -> Manifest:
    """The graphs that these tests replay: compiling the others takes most of a minute."""
    kept = tuple(
        graph
        for graph in manifest.graphs
        if graph.kind in ("init", "snapshot", "restore", "resume")
        or (graph.kind == "prefill" and graph.speculation_enabled)
        or (graph.kind in ("speculative", "decode") and graph.batch_capacity == 1)
        or (graph.kind == "speculative" and graph.batch_capacity == 4 and graph.token_capacity == 8)
    )
    return msgspec.structs.replace(manifest, graphs=kept)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeviceHost]:
    config = PreparationConfig(
        speculative_widths=WIDTHS, context_length=1024, prefill_buckets=(128,), mixed_chunk=32, snapshot_slots=3
    )
    core = write_core(tmp_path_factory.mktemp("transaction"), small_architecture(), config, agreeing)
    manifest = small(read(core))
    geometry, layouts = manifest.geometry, layouts_of(manifest)
    load = LoadConfig(False, geometry.concurrency, geometry.pages, geometry.snapshot_slots, device="cuda")
    with torch.no_grad():
        loaded = load_core(core, manifest, load, CUDA, torch.float32)
        peer = CudaPeer(manifest, loaded.model, loaded.drafter, layouts)
        yield DeviceHost(
            manifest,
            AloneCatalog(peer),  # type: ignore[arg-type]
            tuple(plan_frame(layouts[0], peer.plans, index) for index in range(FRAMES)),
            tuple(completion_frame(layouts[1], peer.completions(), index) for index in range(FRAMES)),
            scratch=Scratch(peer.frames),
        )
        peer.close()


cold = transaction.cold

test_every_prefix = transaction.test_every_accepted_prefix_over_groups_and_pages
test_learned_drafts = transaction.test_learned_drafts_at_every_accepted_count
test_one_emitted_draft = transaction.test_one_emitted_draft_consumes_the_pending_token_alone
test_end_tokens = transaction.test_an_end_token_inside_an_accepted_run_clips_it
test_budgets = transaction.test_the_budget_clips_an_accepted_run
test_rounds_behind_the_end = transaction.test_a_round_that_was_queued_behind_the_end_changes_nothing
test_eight_rows_then_one = transaction.test_eight_rows_then_one_with_eight_preceding_accepted_inputs
test_rejected_rows = histories.test_rejected_rows_are_beyond_every_logical_length
test_resting_slots = histories.test_a_slot_that_takes_no_part_keeps_every_bit
test_penalties = histories.test_prompt_counts_once_output_once_and_rejected_drafts_never


@pytest.mark.parametrize("width", [width for width in WIDTHS if width < 8])
def test_other_widths(host: DeviceHost, cold: Cold, width: int) -> None:
    transaction.test_every_accepted_prefix_at_every_width(host, cold, width)
