"""Which prefixes the device still holds: a radix tree over pages of 64 tokens, with snapshot rows at some nodes. Pure.

A node is one full page behind one exact prefix; its page is immutable and may be read by any number of requests. A hit
is the minimum over all kinds of state: where a model has recurrent state, pages alone are none, and it ends at the
deepest node with a row (cases.md, B08). Partial pages are not shared. Nothing here knows who runs: holders are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from shared.errors import ContractBreach
from shared.manifest import PAGE_TOKENS

NO_ROW = -1
SLACK = 64
"""Outdated entries that the heap of ends may hold beside its pages."""


@dataclass(slots=True, eq=False)
class Node:
    """One page: `depth` pages lie on the way to its end; `holders` requests read it; `used` orders eviction."""

    key: bytes
    page: int
    depth: int
    parent: Node | None
    children: dict[bytes, Node] = field(default_factory=dict)
    row: int = NO_ROW
    row_used: int = 0
    """When the row was last written or restored."""
    pins: int = 0
    """Requests that are about to restore the row."""
    holders: int = 0
    used: int = 0
    cut: bool = False
    """Whether nobody may find it any more: its page is free once nobody reads it."""
    gone: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of the prefix that ends with this page."""
        return self.depth * PAGE_TOKENS

    @property
    def branches(self) -> bool:
        """Whether different texts go on from this prefix."""
        return len(self.children) > 1

    def path(self) -> Iterator[Node]:
        """All nodes from this one up to the first page."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent

    def at(self, tokens: int) -> Node:
        """The node of this path whose prefix has `tokens` tokens. Raises `ContractBreach` for another length."""
        for node in self.path():
            if node.tokens == tokens:
                return node
        raise ContractBreach(f"no page of this prefix ends after {tokens} tokens")


@dataclass(frozen=True, slots=True)
class Match:
    """What the tree knows of a text: the prefix that can be continued, and how many tokens lie in its pages at all."""

    node: Node | None
    shared: int


@dataclass(frozen=True, slots=True)
class Freed:
    """What leaves the tree: pages of the pool and snapshot rows."""

    pages: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()


class PrefixCache:
    """`recurrent`: whether a prefix needs a snapshot row to be continued."""

    def __init__(self, recurrent: bool) -> None:
        self._recurrent = recurrent
        self._root = Node(b"", -1, 0, None)
        self._clock = 0
        self._leaves: list[tuple[int, int, Node]] = []
        """Heap of ends that nobody held when they were entered; what is true of them is asked when they are taken."""
        self._entries = 0
        self._rows: dict[int, Node] = {}
        self.pages = 0
        """Pages that the tree owns."""
        self.idle = 0
        """Those among them that no request reads: all of them can be evicted."""

    @property
    def rows(self) -> int:
        """Snapshot rows at nodes."""
        return len(self._rows)

    def find(self, tokens: NDArray[np.int32], most: int) -> Match:
        """The deepest prefix of `tokens`, of at most `most` tokens, that can be continued."""
        found, node = None, self._root
        for key in _keys(tokens):
            child = node.children.get(key)
            if child is None:
                break
            node = child
            if node.tokens <= most and (node.row != NO_ROW or not self._recurrent):
                found = node
        return Match(found, node.tokens)

    def hold(self, node: Node) -> tuple[int, ...]:
        """Marks the prefix as read by one more request; its pages, first to last."""
        self._clock += 1
        pages = []
        for member in node.path():
            if not member.holders:
                self.idle -= 1
            member.holders += 1
            member.used = self._clock
            pages.append(member.page)
        return tuple(reversed(pages))

    def drop(self, node: Node) -> Freed:
        """Ends a hold, which counts as a use; what was cut off and nobody reads now leaves.

        Raises `ContractBreach` for a hold that nobody has.
        """
        self._clock += 1
        freed: list[int] = []
        rows: list[int] = []
        for member in node.path():
            if member.holders == 0:
                raise ContractBreach("a prefix is given back that nobody holds")
            member.holders -= 1
            member.used = self._clock
            if not member.holders:
                self.idle += 1
                if member.cut:
                    self._remove(member, freed, rows)
                else:
                    self._enter(member)
        return Freed(tuple(freed), tuple(rows))

    def extend(
        self, node: Node | None, tokens: NDArray[np.int32], pages: Sequence[int]
    ) -> tuple[Node, tuple[int, ...]]:
        """Enters further full pages behind a held prefix (None: the empty one), and holds them for its holder.

        Returns the last node and the pages now owned here: where the tree has a page already, the given one stays its
        giver's. Raises `ContractBreach` without a page, or behind a prefix that was cut off.
        """
        if node is not None and node.cut:
            raise ContractBreach("a prefix goes on that was cut off")
        self._clock += 1
        current, taken = node or self._root, []
        for key, page in zip(_keys(tokens), pages, strict=True):
            child = current.children.get(key)
            if child is None:
                child = current.children[key] = Node(key, page, current.depth + 1, current)
                taken.append(page)
            elif not child.holders:
                self.idle -= 1
            child.holders += 1
            child.used = self._clock
            current = child
        if current is self._root:
            raise ContractBreach("a prefix without a page is entered")
        self.pages += len(taken)
        return current, tuple(taken)

    def attach(self, node: Node, row: int) -> bool:
        """Gives a node a snapshot row; False if it has one, or is no longer in the tree."""
        if node.row != NO_ROW or node.cut or node.gone:
            return False
        self._clock += 1
        node.row, node.row_used = row, self._clock
        self._rows[row] = node
        return True

    def detach(self, node: Node) -> int:
        """Takes the row off a node; the row, or `NO_ROW`."""
        row, node.row = node.row, NO_ROW
        self._rows.pop(row, None)
        return row

    def pin(self, node: Node) -> None:
        """Keeps a node's row where it is until `unpin`."""
        self._clock += 1
        node.pins += 1
        node.row_used = self._clock

    def unpin(self, node: Node) -> None:
        """Ends a pin. Raises `ContractBreach` for one that nobody has."""
        if node.pins == 0:
            raise ContractBreach("a snapshot row is unpinned that nobody had pinned")
        node.pins -= 1

    def evict(self, pages: int) -> Freed:
        """Frees at least `pages` pages, if so many are nobody's: least recently used ends first."""
        freed: list[int] = []
        rows: list[int] = []
        while len(freed) < pages and self._leaves:
            used, _, node = heappop(self._leaves)
            if self._is_end(node) and node.used == used:
                self._remove(node, freed, rows)
        return Freed(tuple(freed), tuple(rows))

    def cut(self, node: Node) -> Freed:
        """Takes a whole prefix out, from its first page on, with all texts that go on from there.

        Nobody finds it again. What is read stays until its last holder drops it, and so does a row that a restore
        waits for; everything else leaves now.
        """
        freed: list[int] = []
        rows: list[int] = []
        top = list(node.path())[-1]
        if top.cut or top.parent is None:
            return Freed()
        del top.parent.children[top.key]
        top.parent = Node(b"", -1, 0, None, {top.key: top})
        below = [top]
        for member in below:
            member.cut = True
            below += member.children.values()
        for member in reversed(below):
            if not member.holders:
                self._remove(member, freed, rows)
            elif member.row != NO_ROW and not member.pins:
                rows.append(self.detach(member))
        return Freed(tuple(freed), tuple(rows))

    def evict_row(self) -> int:
        """Takes the least recently used row off its node, unless a restore waits for it; the row, or `NO_ROW`."""
        found = [node for node in self._rows.values() if not node.pins]
        return self.detach(min(found, key=lambda node: node.row_used)) if found else NO_ROW

    def _is_end(self, node: Node) -> bool:
        return not (node.gone or node.children or node.holders)

    def _enter(self, node: Node) -> None:
        if self._is_end(node) and node.parent is not None:
            self._entries += 1
            heappush(self._leaves, (node.used, self._entries, node))
            if len(self._leaves) > 2 * self.pages + SLACK:
                current = {entry[2]: entry for entry in self._leaves if entry[0] == entry[2].used}
                self._leaves = [entry for node, entry in current.items() if self._is_end(node)]
                heapify(self._leaves)

    def _remove(self, node: Node, freed: list[int], rows: list[int]) -> None:
        freed.append(node.page)
        if node.row != NO_ROW:
            rows.append(self.detach(node))
        node.gone = True
        self.pages -= 1
        self.idle -= 1
        if node.parent is not None:
            del node.parent.children[node.key]
            self._enter(node.parent)


def _keys(tokens: NDArray[np.int32]) -> Iterator[bytes]:
    """Exact contents of each full page."""
    for end in range(PAGE_TOKENS, len(tokens) + 1, PAGE_TOKENS):
        yield tokens[end - PAGE_TOKENS : end].tobytes()
