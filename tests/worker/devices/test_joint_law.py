"""The joint law of two tokens through a device's rounds is the target's: learned drafts and copies before them.

The experiment of tests/acceptance/test_joint_law.py over hashes, with fewer draws; tests/gpu/test_joint_law.py makes
all of them over rounds captured on a card.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from services.worker.devices.catalog import DeviceCatalog
from tests.components.laws import REJECT_BELOW, joint_p_value
from tests.worker.devices.alone import alone
from tests.worker.devices.hashed import HashedDrafter
from tests.worker.devices.laws import AnotherRowsLaw, EagerDrafter, HashedExperiment, law_core, parts_of
from tests.worker.devices.twin import HostPeer, layouts_of

CPU = torch.device("cpu")
DRAWS = 208


def experiment(folder: Path, drafter: type[HashedDrafter]) -> HashedExperiment:
    """Sixteen lanes on this CPU."""
    manifest = law_core(folder)
    layouts = layouts_of(manifest)
    peer = HostPeer(layouts)
    peer.catalog = DeviceCatalog(manifest, *parts_of(manifest, drafter, CPU), layouts, peer.frames, CPU)
    peer.catalog.capture()
    return HashedExperiment(alone(peer, manifest, layouts)[0])


@pytest.mark.parametrize(("drafter", "right"), [(EagerDrafter, True), (AnotherRowsLaw, False)])
def test_two_tokens_have_the_targets_joint_law_only_if_drafts_have_the_law_they_report(
    tmp_path: Path, drafter: type[HashedDrafter], right: bool
) -> None:
    found = experiment(tmp_path, drafter)
    tally = found.draw("learned", 2, DRAWS)
    p = joint_p_value(tally.pairs, found.exact) if right or set(tally.pairs) <= set(found.exact) else 0.0
    assert (p > REJECT_BELOW) == right, f"p = {p}"
    assert {case[0] for case in tally.cases} == {0, 1, 2}
