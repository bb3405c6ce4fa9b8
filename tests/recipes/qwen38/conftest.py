"""A tiny checkpoint of the real format, and the references over it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from recipes.qwen38.checkpoint import Checkpoint
from recipes.qwen38.tiny import tiny_architecture, write_tiny
from tests.recipes.qwen38.oracle import DrafterOracle, TargetOracle
from tests.threads import torch_threads

LENGTH = 96
"""Tokens of the text that everything is compared on: beyond the selector's budget, over two pages."""


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """Matrices are tiny here: on a busy machine two threads would wait for one another far longer than they work."""
    with torch_threads(1):
        yield


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny-qwen")
    write_tiny(path, tiny_architecture(), seed=1)
    return path


@pytest.fixture(scope="session")
def checkpoint(folder: Path) -> Checkpoint:
    return Checkpoint(folder)


@pytest.fixture(scope="session")
def target_oracle(checkpoint: Checkpoint) -> TargetOracle:
    return TargetOracle(checkpoint)


@pytest.fixture(scope="session")
def drafter_oracle(checkpoint: Checkpoint, target_oracle: TargetOracle) -> DrafterOracle:
    return DrafterOracle(checkpoint, target_oracle)


@pytest.fixture(scope="session")
def text(checkpoint: Checkpoint) -> torch.Tensor:
    """Token ids with an end token inside, so that n-gram history is cut once."""
    generator = torch.Generator().manual_seed(3)
    end = checkpoint.architecture.eos_token_id
    found = torch.randint(0, end, (LENGTH,), generator=generator)
    found[11] = end
    return found


@pytest.fixture(scope="session")
def tolerance(target_oracle: TargetOracle, text: torch.Tensor) -> float:
    """Four times the largest difference that the reference has from itself, cached against uncached, on this text."""
    measured = target_oracle.repeatability(text)
    assert 0.0 < measured < 1e-3, f"the reference differs from itself by {measured}"
    return 4.0 * measured
