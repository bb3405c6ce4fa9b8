"""The joint law of two tokens through a device's rounds of the tiny Qwen3.8, with its MTP drafter, is the target's.

Bodies, draws, core and tests of tests/acceptance/test_joint_law.py, whose power is stated there; in float32, on a card
captured, on the CPU with the references of all operators. A hashed model's, known to the last bit: test_joint_law.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec
import pytest
import torch

from recipes.components.device_drafter import DeviceDrafts, DeviceTask
from recipes.components.model import Proposal
from recipes.declaration import LoadConfig, PreparationConfig
from recipes.qwen38.device_core import load_core
from recipes.qwen38.device_drafter import DeviceMtp
from shared.manifest import Manifest, read
from tests.acceptance import test_joint_law as law
from tests.acceptance.cores import agreeing, small_architecture, write_core
from tests.acceptance.test_joint_law import BROKEN_DRAWS, LANES, PROMPT
from tests.components.laws import REJECT_BELOW, joint_p_value
from tests.gpu.captured import CUDA, CudaPeer
from tests.threads import torch_threads
from tests.worker.devices.alone import alone
from tests.worker.devices.test_qwen38_twin import CPU, host_peer
from tests.worker.devices.twin import Peer, layouts_of
from tests.worker.host import Host

Device = Literal["cpu", "cuda"]
pytestmark = pytest.mark.timeout(300)


class MtpExperiment(law.Experiment):
    """The experiment over a device's rounds."""

    def __init__(self, host: Host, peer: Peer) -> None:
        self._peer = peer
        super().__init__(host)

    def _proposed(self) -> int:
        """Asked like a round of all lanes of which only one lives: nothing more is compiled."""
        catalog, device = self._peer.catalog, self._peer.catalog.state.device
        drafter, first = catalog._drafter, torch.arange(LANES, device=device) == 0
        assert isinstance(drafter, DeviceMtp)
        slots = torch.where(first, 0, -1)
        task = DeviceTask(
            slots=slots,
            rows=catalog.state.safe(slots),
            consumed=torch.where(first, len(PROMPT), 0),
            pending=torch.where(first, self.pending, 0),
            limits=first.long(),
            tables=torch.from_numpy(self.host.pages(0)).to(device).expand(LANES, -1).contiguous(),
            draws=torch.full((LANES, 1), 0.5, device=device),
            state=catalog.state,
        )
        found: list[DeviceDrafts] = []
        catalog._frames.run(lambda: found.append(drafter.propose(task)))
        return int(found[0].law[0, 0].argmax())


def kept_graphs(manifest: Manifest) -> Manifest:
    """The graphs that the experiment replays."""
    kinds = ("init", "prefill", "snapshot", "restore", "resume")
    kept = tuple(
        graph
        for graph in manifest.graphs
        if graph.speculation_enabled is not False
        and (graph.kind in kinds or (graph.kind == "speculative" and graph.batch_capacity == LANES))
    )
    return msgspec.structs.replace(manifest, graphs=kept)


def told(drafter: DeviceMtp, broken: law.Broken) -> Callable[[DeviceTask], DeviceDrafts]:
    """Proposals of which each lane's is told otherwise than it was made."""
    honest = drafter.propose

    def propose(task: DeviceTask) -> DeviceDrafts:
        found = honest(task)
        lanes = [broken(Proposal(*lane)) for lane in zip(found.tokens, found.law, strict=True)]
        tokens, laws = torch.stack([lane.tokens for lane in lanes]), torch.stack([lane.law for lane in lanes])
        return replace(found, tokens=tokens, law=laws)

    return propose


@contextmanager
def opened(core: Path, device: Device, broken: law.Broken | None = None) -> Iterator[MtpExperiment]:
    """The experiment over a catalog that was captured for it, whose drafter tells the truth unless it is `broken`."""
    manifest = kept_graphs(read(core))
    geometry, layouts = manifest.geometry, layouts_of(manifest)
    load = LoadConfig(False, geometry.concurrency, geometry.pages, geometry.snapshot_slots, device=device)
    where, make_peer = (CUDA, CudaPeer) if device == "cuda" else (CPU, host_peer)
    with torch.no_grad(), torch_threads(1):
        loaded = load_core(core, manifest, load, where, torch.float32)
        assert isinstance(loaded.drafter, DeviceMtp)
        if broken is not None:
            vars(loaded.drafter)["propose"] = told(loaded.drafter, broken)
        peer = make_peer(manifest, loaded.model, loaded.drafter, layouts)
        try:
            yield MtpExperiment(alone(peer, manifest, layouts)[0], peer)
        finally:
            peer.close()


@pytest.fixture(
    scope="module", params=[pytest.param("cpu", marks=pytest.mark.slow), pytest.param("cuda", marks=pytest.mark.gpu)]
)
def device(request: pytest.FixtureRequest) -> Device:
    found: Device = request.param
    return found


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = PreparationConfig(
        draft_tokens=4, concurrency=LANES, context_length=128, prefill_buckets=(128,), mixed_chunk=32, snapshot_slots=1
    )
    return write_core(tmp_path_factory.mktemp("law"), small_architecture(), config, agreeing)


@pytest.fixture(scope="module")
def experiment(core: Path, device: Device) -> Iterator[law.Experiment]:
    with opened(core, device) as found:
        yield found


test_joint_law = law.test_two_tokens_have_the_targets_joint_law
test_one_law = law.test_all_ways_of_drafting_together_have_one_law
test_seeds = law.test_copies_leave_every_seed_its_tokens


@pytest.mark.parametrize("broken", [law.reported_too_cool, law.drawn_from_another_law, law.law_of_another_row])
def test_a_law_that_the_drafts_were_not_drawn_from_is_rejected(core: Path, device: Device, broken: law.Broken) -> None:
    with opened(core, device, broken) as found:
        pairs = found.draw("learned", 2, BROKEN_DRAWS).pairs
        assert not set(pairs) <= set(found.exact) or joint_p_value(pairs, found.exact) < REJECT_BELOW


def test_a_point_mass_is_a_law_of_any_draft(core: Path, device: Device, experiment: law.Experiment) -> None:
    usual = experiment.tally("learned", 2)
    with opened(core, device, law.point_mass) as found:
        tally = found.draw("learned", 2, BROKEN_DRAWS)
        assert joint_p_value(tally.pairs, found.exact) > REJECT_BELOW
        assert tally.cases[2, 2] / BROKEN_DRAWS < 0.7 * usual.cases[2, 2] / len(usual.by_seed)
