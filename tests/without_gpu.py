"""A pytest plugin: tests of cards are skipped where there is none, and the summary names those that were left out.

CI deselects them by mark, which alone tells nobody what it did not prove. Workers of xdist hand their names over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pytest

from shared.cuda_driver import visible_gpus

_MARKS = ("gpu", "gpu2")
_KEY = "left_out_without_gpu"
_left_out = pytest.StashKey[set[str]]()


def _wants_a_card(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(mark) for mark in _MARKS)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips what needs a card that is not here."""
    wanting = [item for item in items if _wants_a_card(item)]
    if wanting and not visible_gpus():
        for item in wanting:
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU here"))
        _note(config, wanting)


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Notes what `-m "not gpu"` leaves out; not what `-k` does on a machine with a card."""
    if not visible_gpus():
        for item in items:
            if _wants_a_card(item):
                _note(item.config, [item])


def _note(config: pytest.Config, items: Iterable[pytest.Item]) -> None:
    config.stash.setdefault(_left_out, set()).update(item.nodeid for item in items)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a worker of xdist: hands the names over to the process that prints."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        names: set[str] = session.config.stash.get(_left_out, set())
        output[_KEY] = sorted(names)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Takes them from a worker that has ended."""
    node.config.stash.setdefault(_left_out, set()).update(getattr(node, "workeroutput", {}).get(_KEY, ()))


def told(names: Iterable[str]) -> list[str]:
    """Lines that name them, by file; parameters of a test are one name."""
    files: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for name in sorted(names):
        path, _, test = name.partition("::")
        files[path][test.partition("[")[0]] += 1
    return [
        f"  {path}: " + ", ".join(f"{test} ({count})" if count > 1 else test for test, count in tests.items())
        for path, tests in files.items()
    ]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """What this run did not prove."""
    names = config.stash.get(_left_out, set())
    if names:
        terminalreporter.section("left out for want of a GPU", sep="-")
        terminalreporter.write_line(f"{len(names)} tests need an NVIDIA GPU; `make test-gpu` runs them on a card")
        for line in told(names):
            terminalreporter.write_line(line)
