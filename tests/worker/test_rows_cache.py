"""The row server's cache against a plain model of it: the same rows stay, all are right, and its bound holds."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.rows_cache import ENTRY_BYTES, RowCache

ROW_BYTES = 8
TABLE = np.random.default_rng(2).integers(0, 256, (40, ROW_BYTES), dtype=np.uint8)
ASKS = st.lists(st.lists(st.integers(0, len(TABLE) - 1), unique=True, max_size=24), max_size=30)


@settings(max_examples=150, deadline=None)
@given(bound=st.integers(0, 16 * (ROW_BYTES + ENTRY_BYTES)), asks=ASKS)
def test_over_random_asks_it_is_an_lru_with_right_rows_within_its_bound(bound: int, asks: list[list[int]]) -> None:
    cache = RowCache(bound, ROW_BYTES)
    model: OrderedDict[int, None] = OrderedDict()
    for ask in asks:
        ids, out = np.array(ask, dtype=np.int64), np.zeros((len(ask), ROW_BYTES), dtype=np.uint8)
        missing = cache.look_up(ids, out)
        assert [ask[at] for at in missing] == [row for row in ask if row not in model]
        out[missing] = TABLE[ids[missing]]
        assert (out == TABLE[ids]).all(), "a row of the cache is not the table's"
        cache.insert(ids[missing], out[missing])
        for row in ask:
            if row in model:
                model.move_to_end(row)
        for at in missing:
            model[ask[at]] = None
        while len(model) > cache.capacity:
            model.popitem(last=False)
        assert {row for row in range(len(TABLE)) if row in cache} == set(model)
        assert len(cache) == len(model)
        assert cache.nbytes <= bound


def test_a_bound_below_one_row_holds_nothing() -> None:
    cache = RowCache(ROW_BYTES + ENTRY_BYTES - 1, ROW_BYTES)
    cache.insert(np.array([1]), TABLE[[1]])
    assert len(cache) == 0
    assert cache.look_up(np.array([1]), np.zeros((1, ROW_BYTES), dtype=np.uint8)).tolist() == [0]
