"""The prefix cache against a plain dictionary of prefixes: hits, branches, holds, evictions, all kinds of state."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from numpy.typing import NDArray

from services.scheduler.prefix_cache import NO_ROW, SLACK, Freed, Node, PrefixCache
from shared.errors import ContractBreach
from shared.manifest import PAGE_TOKENS


def text(*pages: int, rest: int = 0) -> NDArray[np.int32]:
    """Whole pages of one repeated token each, and a few tokens behind them."""
    return np.array([page for page in pages for _ in range(PAGE_TOKENS)] + [9] * rest, dtype=np.int32)


def published(cache: PrefixCache, pages: tuple[int, ...], given: tuple[int, ...]) -> tuple[Node, tuple[int, ...]]:
    """Enters a prefix as a request does that is over then."""
    node, taken = cache.extend(None, text(*pages), given)
    cache.drop(node)
    return node, taken


def test_a_text_without_recurrent_state_hits_all_its_full_pages() -> None:
    cache = PrefixCache(recurrent=False)
    published(cache, (1, 2, 3), (10, 11, 12))
    found = cache.find(text(1, 2, 3), most=3 * PAGE_TOKENS - 1)
    assert found.node is not None
    assert found.node.tokens == 2 * PAGE_TOKENS, "at least one token is left to compute"
    assert found.shared == 3 * PAGE_TOKENS
    longer = cache.find(text(1, 2, 3, rest=1), most=3 * PAGE_TOKENS).node
    assert longer is not None
    assert cache.hold(longer) == (10, 11, 12)


def test_pages_without_a_row_are_no_hit_for_recurrent_state() -> None:
    """B08: the usable prefix is the minimum over all kinds of state."""
    cache = PrefixCache(recurrent=True)
    last, taken = published(cache, (1, 2, 3), (10, 11, 12))
    assert taken == (10, 11, 12)
    wanted = text(1, 2, 3, rest=5)
    assert cache.find(wanted, len(wanted)).node is None
    assert cache.find(wanted, len(wanted)).shared == 3 * PAGE_TOKENS
    second = last.at(2 * PAGE_TOKENS)
    assert cache.attach(second, 4)
    assert not cache.attach(second, 5), "one row is enough"
    assert cache.find(wanted, len(wanted)).node is second
    assert cache.find(text(1, 2), 2 * PAGE_TOKENS).node is second, "a row at the exact end gives the next token's law"
    assert cache.find(text(1, 2), 2 * PAGE_TOKENS - 1).node is None
    assert cache.evict_row() == 4
    assert cache.find(wanted, len(wanted)).node is None


def test_branches_share_the_pages_before_them() -> None:
    cache = PrefixCache(recurrent=False)
    published(cache, (1, 2), (10, 11))
    last, taken = published(cache, (1, 3), (20, 21))
    assert taken == (21,), "what the tree has already stays its giver's"
    assert [node.page for node in last.path()] == [21, 10]
    assert last.at(PAGE_TOKENS).branches
    assert not last.branches


def test_what_is_held_stays_and_the_least_recently_used_end_goes_first() -> None:
    cache = PrefixCache(recurrent=False)
    published(cache, (1, 2), (10, 11))
    published(cache, (1, 3), (10, 12))
    held = cache.find(text(1, 2, rest=1), 128).node
    assert held is not None
    cache.hold(held)
    assert cache.idle == 1
    assert cache.evict(5).pages == (12,)
    cache.drop(held)
    assert cache.evict(5).pages == (11, 10)
    assert cache.pages == cache.idle == 0
    with pytest.raises(ContractBreach):
        cache.drop(held)


def test_a_row_that_waits_to_be_restored_is_not_taken_for_another_prefix() -> None:
    cache = PrefixCache(recurrent=True)
    old, _ = published(cache, (1,), (10,))
    new, _ = published(cache, (2,), (11,))
    cache.attach(old, 0)
    cache.attach(new, 1)
    cache.pin(old)
    cache.pin(new)
    cache.unpin(new)
    assert cache.evict_row() == 1, "although the other was used earlier"
    assert cache.evict_row() == NO_ROW
    cache.unpin(old)
    assert cache.evict_row() == 0
    with pytest.raises(ContractBreach):
        cache.unpin(old)


def test_a_prefix_that_is_cut_off_is_met_by_nobody_and_leaves_with_its_last_holder() -> None:
    cache = PrefixCache(recurrent=True)
    first, _ = published(cache, (1, 2), (10, 11))
    end, _ = published(cache, (1, 2, 3, 4), (10, 11, 12, 13))
    tail, _ = published(cache, (1, 5), (10, 14))
    other, _ = published(cache, (6,), (15,))
    for row, node in enumerate((first, end, tail, other)):
        cache.attach(node, row)
    cache.hold(first)
    cache.hold(tail)
    cache.pin(first)
    freed = cache.cut(end)
    assert (set(freed.pages), set(freed.rows)) == ({12, 13}, {1, 2}), "the row of `first` waits for its restore"
    assert cache.cut(first) == Freed()
    assert cache.find(text(1, 2), 128).node is None
    assert cache.find(text(6), 64).node is other
    assert not cache.attach(tail, 9)
    with pytest.raises(ContractBreach):
        cache.extend(first, text(7), (20,))
    anew, taken = cache.extend(None, text(1, 2), (21, 22))
    assert taken == (21, 22), "the same text again is entered beside it"
    cache.unpin(first)
    freed = cache.drop(first)
    assert (freed.pages, freed.rows) == ((11,), (0,)), "`tail` still reads the first page"
    assert cache.drop(tail).pages == (14, 10)
    assert cache.drop(anew) == Freed()
    assert (cache.pages, cache.idle, cache.rows) == (3, 3, 1)
    assert set(cache.evict(9).pages) == {15, 21, 22}


def test_a_cache_that_is_only_hit_remembers_no_outdated_ends() -> None:
    cache = PrefixCache(recurrent=False)
    node, _ = published(cache, (1, 2), (10, 11))
    for _ in range(10 * SLACK):
        cache.hold(node)
        cache.drop(node)
    assert len(cache._leaves) <= 2 * cache.pages + SLACK
    assert cache.evict(2).pages == (11, 10)


class Model(RuleBasedStateMachine):
    """Random texts over two tokens, three pages deep; the reference maps each prefix to its page and row."""

    @initialize(recurrent=st.booleans())
    def begin(self, recurrent: bool) -> None:
        self.cache = PrefixCache(recurrent)
        self.recurrent = recurrent
        self.held: list[Node] = []
        self.lost: list[Node] = []
        """Held, and cut off."""
        self.owned: dict[tuple[int, ...], int] = {}
        self.rows: dict[tuple[int, ...], int] = {}
        self.next_page = self.next_row = 0

    pages = st.lists(st.integers(1, 2), min_size=1, max_size=3).map(tuple)

    @staticmethod
    def prefix(node: Node) -> tuple[int, ...]:
        return tuple(int(np.frombuffer(member.key, dtype=np.int32)[0]) for member in node.path())[::-1]

    @rule(pages=pages, keep=st.booleans())
    def publish(self, pages: tuple[int, ...], keep: bool) -> None:
        given_pages = tuple(range(self.next_page, self.next_page + len(pages)))
        self.next_page += len(pages)
        node, taken = self.cache.extend(None, text(*pages), given_pages)
        new = {pages[:n]: page for n, page in enumerate(given_pages, 1) if pages[:n] not in self.owned}
        assert set(taken) == set(new.values())
        assert self.prefix(node) == pages
        self.owned |= new
        if keep:
            self.held.append(node)
        else:
            self.cache.drop(node)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), more=pages)
    def grow(self, data: st.DataObject, more: tuple[int, ...]) -> None:
        """A holder goes on publishing behind what it holds."""
        node = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        before, more = self.prefix(node), more[: 4 - node.depth]
        if not more:
            self.held.append(node)
            return
        given = tuple(range(self.next_page, self.next_page + len(more)))
        self.next_page += len(more)
        node, taken = self.cache.extend(node, text(*more), given)
        whole = before + more
        new = {whole[: len(before) + n]: page for n, page in enumerate(given, 1)}
        new = {prefix: page for prefix, page in new.items() if prefix not in self.owned}
        assert set(taken) == set(new.values())
        self.owned |= new
        self.held.append(node)

    @rule(pages=pages)
    def attach(self, pages: tuple[int, ...]) -> None:
        if pages in self.owned:
            node, _ = self.cache.extend(None, text(*pages), [-1] * len(pages))
            assert self.cache.attach(node, self.next_row) == (pages not in self.rows)
            self.rows.setdefault(pages, self.next_row)
            self.next_row += 1
            self.cache.drop(node)

    @rule()
    def take_a_row(self) -> None:
        row = self.cache.evict_row()
        assert (row == NO_ROW) == (not self.rows)
        self.rows = {prefix: held for prefix, held in self.rows.items() if held != row}

    @rule(pages=pages, rest=st.integers(0, 1), whole=st.booleans())
    def find(self, pages: tuple[int, ...], rest: int, whole: bool) -> None:
        wanted = text(*pages, rest=rest)
        usable = [
            pages[:n]
            for n in range(1, len(pages) + 1)
            if all(pages[:m] in self.owned for m in range(1, n + 1))
            and (pages[:n] in self.rows or not self.recurrent)
            and (whole or rest or n < len(pages))
        ]
        found = self.cache.find(wanted, len(wanted) if whole else len(wanted) - 1).node
        assert (None if found is None else self.prefix(found)) == (max(usable, key=len) if usable else None)
        if found is not None:
            held = self.prefix(found)
            assert self.cache.hold(found) == tuple(self.owned[held[:n]] for n in range(1, found.depth + 1))
            self.held.append(found)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.cache.drop(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @rule(count=st.integers(1, 3))
    def evict(self, count: int) -> None:
        kept = {self.prefix(node)[:n] for node in self.held for n in range(1, node.depth + 1)}
        freed = self.cache.evict(count)
        gone = {prefix for prefix, page in self.owned.items() if page in freed.pages}
        assert not gone & kept
        assert len(gone) == min(count, len(self.owned) - len(kept))
        assert {self.rows[prefix] for prefix in gone if prefix in self.rows} == set(freed.rows)
        self.owned = {prefix: page for prefix, page in self.owned.items() if prefix not in gone}
        self.rows = {prefix: row for prefix, row in self.rows.items() if prefix not in gone}

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        first = self.prefix(data.draw(st.sampled_from(self.held)))[0]
        lost = [node for node in self.held if self.prefix(node)[0] == first]
        kept = {member.page for node in lost for member in node.path()}
        freed = self.cache.cut(lost[0])
        below = {prefix for prefix in self.owned if prefix[0] == first}
        assert set(freed.pages) == {self.owned.pop(prefix) for prefix in below} - kept
        assert set(freed.rows) == {self.rows.pop(prefix) for prefix in below if prefix in self.rows}
        self.held = [node for node in self.held if node not in lost]
        self.lost += lost

    @precondition(lambda self: self.lost)
    @rule(data=st.data())
    def drop_lost(self, data: st.DataObject) -> None:
        before = self.lost_pages()
        freed = self.cache.drop(self.lost.pop(data.draw(st.integers(0, len(self.lost) - 1))))
        assert set(freed.pages) == before - self.lost_pages()

    def lost_pages(self) -> set[int]:
        return {member.page for node in self.lost for member in node.path()}

    @invariant()
    def counts_agree(self) -> None:
        kept = {self.prefix(node)[:n] for node in self.held for n in range(1, node.depth + 1)}
        assert self.cache.pages == len(self.owned) + len(self.lost_pages())
        assert self.cache.idle == len(self.owned) - len(kept)
        assert self.cache.rows == len(self.rows)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
