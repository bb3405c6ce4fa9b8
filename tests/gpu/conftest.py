"""GPU tests: where their kernels run, and the figures they report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.gpu.places import Place
    from tests.gpu.toy_worker import ToyWorker

_lines = pytest.StashKey[list[str]]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The figures, after the results: reported, asserted nowhere."""
    for line in config.stash.get(_lines, []):
        terminalreporter.write_line(f"figure: {line}")


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Reports one line of measurements."""
    return request.config.stash.setdefault(_lines, []).append


@pytest.fixture(params=["interpreter", pytest.param("card", marks=pytest.mark.gpu)])
def place(request: pytest.FixtureRequest) -> Place:
    """Where kernels run: one body of a test serves both."""
    import torch

    from tests.gpu.places import card, interpreter

    torch.manual_seed(20261130)
    return interpreter() if request.param == "interpreter" else card()


MakeWorker = Callable[..., "ToyWorker"]


@pytest.fixture
def make_worker() -> Iterator[MakeWorker]:
    """Toy workers that are closed again."""
    from tests.gpu.toy_worker import ToyWorker

    made: list[ToyWorker] = []

    def make(**settings: object) -> ToyWorker:
        made.append(ToyWorker(**settings))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for worker in made:
        worker.close()


@pytest.fixture
def worker(make_worker: MakeWorker) -> ToyWorker:
    """A plain toy worker at round 0."""
    return make_worker()
