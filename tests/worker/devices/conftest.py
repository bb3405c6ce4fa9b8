"""The hosts of `tests/worker`, each with a device's rounds beside the CPU's programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.manifest import read
from tests.fixtures.scripted.recipe import COPIES, SCRIPTED, make_core
from tests.worker.devices.twin import twin_of
from tests.worker.host import Host


@pytest.fixture
def learned(tmp_path: Path) -> Host:
    """T1 with the learned drafter D1, on both."""
    return twin_of(SCRIPTED, read(make_core(tmp_path / "core", SCRIPTED)))


@pytest.fixture
def copies(tmp_path: Path) -> Host:
    """T1 without a learned drafter, on both."""
    return twin_of(COPIES, read(make_core(tmp_path / "core", COPIES)))
