"""Hosts over T1 with D1, over T1 alone (copies only), and over the tiny Qwen3.8."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.manifest import read
from tests.fixtures.scripted.recipe import COPIES, SCRIPTED, make_core
from tests.worker.host import Host, host_of
from tests.worker.qwen38_host import Qwen38Host
from tests.worker.qwen38_reference import Reference, write_core


@pytest.fixture
def learned(tmp_path: Path) -> Host:
    """T1 with the learned drafter D1."""
    return host_of(SCRIPTED, read(make_core(tmp_path / "core", SCRIPTED)))


@pytest.fixture
def copies(tmp_path: Path) -> Host:
    """T1 without a learned drafter."""
    return host_of(COPIES, read(make_core(tmp_path / "core", COPIES)))


@pytest.fixture(scope="session")
def qwen38_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3.8 checkpoint and its core."""
    folder = tmp_path_factory.mktemp("qwen38")
    write_core(folder)
    return folder


@pytest.fixture(scope="session")
def qwen38_reference(qwen38_folder: Path) -> Reference:
    return Reference(qwen38_folder)


@pytest.fixture(scope="session", params=[True, False], ids=["deterministic", "fast"])
def qwen38(request: pytest.FixtureRequest, qwen38_folder: Path, qwen38_reference: Reference) -> Iterator[Qwen38Host]:
    """A host over it, in both arithmetics."""
    host = Qwen38Host.open(qwen38_folder, qwen38_reference, 91, deterministic=request.param)
    yield host
    host.frames.close()
