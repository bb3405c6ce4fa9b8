"""One item of the acceptance list, and the short names of the files whose tests hold them."""

from __future__ import annotations

from dataclasses import dataclass

HERE = "tests/acceptance/"
TRANSACTION, HISTORIES, PREFIXES = (HERE + f"test_{name}.py::" for name in ("transaction", "histories", "prefixes"))
LAW, DRAWS, GRAPHS, SERVICE = (HERE + f"test_{name}.py::" for name in ("joint_law", "draws", "graphs", "service"))
WORKER, RECIPES, QWEN38 = "tests/worker/", "tests/recipes/", "tests/recipes/qwen38/"
SCHEDULER, COMPONENTS, SYSTEM = "tests/scheduler/", "tests/components/", "tests/system/"


@dataclass(frozen=True, slots=True)
class Item:
    """A requirement in the design's words, the tests that hold it, and what of it waits for which issue."""

    sentence: str
    tests: tuple[str, ...] = ()
    later: str = ""
