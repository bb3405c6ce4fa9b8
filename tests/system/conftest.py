"""Cores and the shared server of the system tests. A test that kills or stops something starts a server of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.harness import Server
from tests.fixtures.scripted.recipe import make_core


@pytest.fixture(scope="session")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A T1 core with the learned drafter D1."""
    return make_core(tmp_path_factory.mktemp("scripted"))


@pytest.fixture(scope="session")
def server(core: Path) -> Iterator[Server]:
    """A ready server of that core, for tests that leave it as it was.

    Its width is fixed: an adaptive one follows measured times, and whether it drafts is not for a test to assert.
    """
    with Server(core, ("--no-mtp-adaptive-verification",)) as running:
        running.wait_ready()
        yield running


SLOW = {"T1_FORWARD_SECONDS": "0.02"}
"""A model slow enough to be caught in the middle of an answer."""


@pytest.fixture
def slow(core: Path) -> Iterator[Server]:
    """A ready server of its own whose rounds take twenty milliseconds."""
    with Server(core, ("--drain-timeout", "20"), environment=SLOW) as running:
        running.wait_ready()
        yield running
