"""GPU tests: skipped with a reason where there is no card, and the figures they report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.gpu.cards import gpus

if TYPE_CHECKING:
    from tests.gpu.toy_worker import ToyWorker

_lines = pytest.StashKey[list[str]]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what needs a card that is not here."""
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    if wanting and not gpus():
        for item in wanting:
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU here"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The figures, after the results: reported, asserted nowhere."""
    for line in config.stash.get(_lines, []):
        terminalreporter.write_line(f"figure: {line}")


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Reports one line of measurements."""
    return request.config.stash.setdefault(_lines, []).append


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
