"""Hosts over T1 with D1, and over T1 alone (copies only)."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.manifest import read
from tests.fixtures.scripted.recipe import COPIES, SCRIPTED, make_core
from tests.worker.host import Host, host_of


@pytest.fixture
def learned(tmp_path: Path) -> Host:
    """T1 with the learned drafter D1."""
    return host_of(SCRIPTED, read(make_core(tmp_path / "core", SCRIPTED)))


@pytest.fixture
def copies(tmp_path: Path) -> Host:
    """T1 without a learned drafter."""
    return host_of(COPIES, read(make_core(tmp_path / "core", COPIES)))
