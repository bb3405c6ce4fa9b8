"""One small core whose drafter agrees with its target often enough, and a host over it for each file of tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from recipes.declaration import PreparationConfig
from tests.acceptance.cores import SharingHost, agreeing, opened, small_architecture, write_core


@pytest.fixture(scope="session")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven drafts, four slots of 1024 tokens, three snapshot rows."""
    config = PreparationConfig(
        draft_tokens=7, context_length=1024, prefill_buckets=(32, 128), mixed_chunk=32, snapshot_slots=3
    )
    return write_core(tmp_path_factory.mktemp("acceptance"), small_architecture(), config, agreeing)


@pytest.fixture(scope="module")
def host(core: Path) -> Iterator[SharingHost]:
    """A warmed and captured catalog."""
    with opened(core, 95) as opening:
        yield opening
