"""The page pool: one owner a page, nothing lost, ascending neighbours where there is room."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.pages import PagePool, pages_for
from shared.errors import ContractBreach

OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["place", "grow", "release"]), st.integers(1, 6), st.integers(0, 12), st.integers(0, 12)),
    max_size=60,
)


@given(total=st.integers(1, 40), operations=OPERATIONS)
def test_every_page_has_one_owner_and_none_is_lost(total: int, operations: list[tuple[str, int, int, int]]) -> None:
    pool = PagePool(total)
    held: dict[int, list[int]] = {}
    for kind, owner, count, more in operations:
        if kind == "place" and owner not in held:
            found = pool.place(owner, count, count + more)
            assert (found is None) == (count > total - sum(map(len, held.values())))
            if found is not None:
                held[owner] = found
        elif kind == "grow" and owner in held:
            before, wanted = list(held[owner]), len(held[owner]) + count
            grown = pool.grow(owner, held[owner], wanted)
            assert len(held[owner]) == (wanted if grown else len(before))
            assert held[owner][: len(before)] == before
        elif kind == "release" and owner in held:
            pool.release(owner, held.pop(owner))
        pages = [page for one in held.values() for page in one]
        assert len(set(pages)) == len(pages) == total - pool.free
        assert all(pool.owner_of(page) == one for one, mine in held.items() for page in mine)


def test_growing_requests_keep_consecutive_pages_while_the_pool_has_room() -> None:
    pool = PagePool(32)
    held = {owner: pool.place(owner, 1, 8) or [] for owner in (1, 2, 3, 4)}
    for count in range(2, 9):
        for owner, pages in held.items():
            assert pool.grow(owner, pages, count)
    for pages in held.values():
        assert pages == list(range(pages[0], pages[0] + 8))


def test_claims_reserve_nothing() -> None:
    pool = PagePool(8)
    first = pool.place(1, 1, 8)
    second = pool.place(2, 7, 7)
    assert first == [0]
    assert second is not None
    assert sorted(second) == list(range(1, 8))


def test_giving_back_foreign_pages_is_a_breach() -> None:
    pool = PagePool(4)
    pool.place(1, 2, 2)
    with pytest.raises(ContractBreach):
        pool.release(2, [0])


def test_pages_cover_their_extent() -> None:
    assert [pages_for(extent) for extent in (0, 1, 64, 65, 128)] == [0, 1, 1, 2, 2]
