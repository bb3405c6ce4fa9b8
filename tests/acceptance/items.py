"""The acceptance list: sentences of mtp-design.md, each with the tests that hold it, or why none can yet.

Image prompts and token trees aside. A test is named by its file and function; `test_index.py` looks for each of them.
"""

from __future__ import annotations

from tests.acceptance import catalog, correctness, rounds

ITEMS = (
    *rounds.PROPOSALS,
    *rounds.TRANSACTIONS,
    *rounds.STATES,
    *catalog.CHECKPOINT,
    *catalog.WAYS_OF_SERVING,
    *catalog.CATALOG,
    *correctness.SAMPLING,
    *correctness.CORRECTNESS,
    *correctness.COMPARISONS,
)
