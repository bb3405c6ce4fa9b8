"""The joint law of two tokens through rounds captured on the card is the target's, sixteen lanes a round.

Bodies, draws and tests of tests/acceptance/test_joint_law.py, whose power is stated there; the model is one of hashes
(tests/worker/devices/laws.py), so that the exact law is known to the last bit. The tiny Qwen3.8's own follows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tests.acceptance import test_joint_law as law
from tests.components.laws import REJECT_BELOW, joint_p_value
from tests.gpu.captured import CUDA, CudaPeer
from tests.worker.devices.alone import alone
from tests.worker.devices.hashed import HashedDrafter
from tests.worker.devices.laws import AnotherRowsLaw, EagerDrafter, HashedExperiment, TooCool, law_core, parts_of
from tests.worker.devices.twin import layouts_of

pytestmark = pytest.mark.gpu


@contextmanager
def opened(folder: Path, drafter: type[HashedDrafter]) -> Iterator[HashedExperiment]:
    """The experiment over a catalog that was captured for it."""
    manifest = law_core(folder)
    layouts = layouts_of(manifest)
    with torch.no_grad():
        peer = CudaPeer(manifest, *parts_of(manifest, drafter, CUDA), layouts)
        try:
            yield HashedExperiment(alone(peer, manifest, layouts)[0])
        finally:
            peer.close()


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[law.Experiment]:
    with opened(tmp_path_factory.mktemp("law"), EagerDrafter) as found:
        yield found


test_joint_law = law.test_two_tokens_have_the_targets_joint_law
test_one_law = law.test_all_ways_of_drafting_together_have_one_law
test_seeds = law.test_copies_leave_every_seed_its_tokens


@pytest.mark.parametrize("drafter", [AnotherRowsLaw, TooCool])
def test_a_law_that_the_drafts_were_not_drawn_from_is_rejected(tmp_path: Path, drafter: type[HashedDrafter]) -> None:
    with opened(tmp_path, drafter) as found:
        pairs = found.draw("learned", 2, law.BROKEN_DRAWS).pairs
        assert not set(pairs) <= set(found.exact) or joint_p_value(pairs, found.exact) < REJECT_BELOW
