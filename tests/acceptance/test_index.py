"""The acceptance list is kept: every item has tests that exist, and every test here holds an item in its own words."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

from tests.acceptance.item import HERE
from tests.acceptance.items import ITEMS

ROOT = Path(__file__).resolve().parents[2]
NAMED = sorted({test for item in ITEMS for test in item.tests})


UNPROVEN = {"skip", "skipif", "xfail", "slow", "gpu", "gpu2"}
"""Marks of tests that `make test` need not run."""


def found(test: str) -> bool:
    """Whether `make test` collects it: a function of a module that imports, on its own feet."""
    path, _, name = test.partition("::")
    function = getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), name, None)
    marks = {mark.name for mark in getattr(function, "pytestmark", ())}
    return callable(function) and name.startswith("test_") and not marks & UNPROVEN


def test_every_named_test_exists_and_is_run() -> None:
    assert [test for test in NAMED if not found(test)] == []


def test_every_item_has_a_test_or_says_what_it_waits_for() -> None:
    assert [item.sentence for item in ITEMS if not item.tests and not item.later] == []
    assert len({item.sentence for item in ITEMS}) == len(ITEMS)


def quoting() -> dict[str, list[str]]:
    """The tests of this folder, each with what its docstring quotes."""
    found = {}
    for path in sorted((ROOT / HERE).glob("test_*.py")):
        if path.name == Path(__file__).name:
            continue
        for node in ast.parse(path.read_bytes()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                words = " ".join((ast.get_docstring(node) or "").split())
                found[f"{HERE}{path.name}::{node.name}"] = re.findall(r'"([^"]+)"', words)
    return found


def test_every_test_here_quotes_a_sentence_that_names_it() -> None:
    for test, quotes in quoting().items():
        sentences = [item.sentence for item in ITEMS if test in item.tests]
        assert quotes, f"{test} quotes nothing"
        for quote in quotes:
            assert any(quote in sentence for sentence in sentences), f"{test}: no item of its own says {quote!r}"
