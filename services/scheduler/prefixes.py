"""The prefix cache in use: what a request starts from, what of it others may, and who owns pages and rows. Pure.

Between roster, page pool and tree. A page is handed to the tree only when it is full, its tokens stand (prompt, or
acknowledged output) and the device has told that it consumed them: from then on nobody writes it (mtp-design.md,
"Target state and prefix publication"). Rows and pages may be used anew at once, because rounds run in their order: who
held them has no round left, and a queued restore reads before a later export writes.
"""

from __future__ import annotations

from services.scheduler.pages import CACHE, PagePool
from services.scheduler.prefix_cache import NO_ROW, Freed, PrefixCache
from services.scheduler.prefix_share import Export, Share
from services.scheduler.requests import Request
from shared.manifest import PAGE_TOKENS


class Prefixes:
    """`enabled` is the operator's choice, `recurrent` whether a prefix needs a snapshot row. Counts of tokens."""

    def __init__(self, enabled: bool, recurrent: bool) -> None:
        self.recurrent = recurrent
        self.queries = 0
        """Prompt tokens of admitted requests."""
        self.hits = 0
        """Those among them that were found here."""
        self.cache = PrefixCache(recurrent)
        self._enabled = enabled
        self._pool = PagePool(0)
        self._rows: list[int] = []
        """Snapshot rows that nobody uses."""
        self._active = False
        self._settling: dict[int, Request] = {}
        """Requests off the device whose last full pages wait for their acknowledgement, by number."""

    @property
    def available(self) -> int:
        """Pages that no request holds."""
        return self._pool.free + self.cache.idle

    @property
    def free_rows(self) -> int:
        """Snapshot rows that hold nothing anybody could want."""
        return len(self._rows)

    def attach(self, pool: PagePool, rows: int) -> None:
        """A worker with an empty pool and `rows` snapshot rows is there."""
        self._pool, self._rows = pool, list(range(rows))[::-1]
        self._active = self._enabled and (rows > 0 or not self.recurrent)

    def detach(self) -> None:
        """The worker is gone, and with it all that was cached. No request may hold a slot."""
        self._settle_all()
        self._pool.give_back(CACHE, self._pool.owned(CACHE, range(self._pool.total)))
        self.cache, self._rows, self._active = PrefixCache(self.recurrent), [], False

    def open(self, request: Request) -> tuple[int, ...]:
        """Finds what a request can start from and holds it: its share is set, its first pages are returned."""
        request.share = share = Share()
        if not self._active:
            return ()
        length = request.prefill_length
        # Pages alone do not tell the next token's law, nor does a row that of a token which was drawn already.
        whole = self.recurrent and not request.generated
        most = 0 if request.scores else length if whole else length - 1
        match = self.cache.find(request.tokens[:length], most)
        share.hit = 0 if match.node is None else match.node.tokens
        share.noted = 0 if request.submit.sampling.penalised else share.hit
        if self.recurrent:
            wanted = {length // PAGE_TOKENS * PAGE_TOKENS, match.shared}
            share.cuts = tuple(sorted(cut for cut in wanted if cut > share.hit))
        if match.node is None:
            return ()
        share.node = match.node
        if self.recurrent:
            share.source, share.pinned = match.node, True
            self.cache.pin(match.node)
        return self.cache.hold(match.node)

    def admitted(self, request: Request) -> None:
        """The request has its slot; the first time, its prompt counts as a query."""
        if request.cached is None:
            request.cached = request.share.hit
            self.queries += request.prompt_length if self._active and not request.scores else 0
            self.hits += request.share.hit

    def restored(self, request: Request, noted: int) -> None:
        """A restore round is queued, which notes `noted` tokens of the prefix."""
        share = request.share
        share.noted += noted
        self._unpin(share)

    def cut_row(self, request: Request, boundary: int) -> int:
        """A row for the chunk that ends at a wanted boundary, or `NO_ROW`: nobody waits for one.

        Where the tree has one already, which a preempted request may have left, none is taken from another prefix.
        """
        there = self.cache.find(request.tokens[:boundary], boundary).node
        if (there is not None and there.tokens == boundary) or not self._gives(request.share) or not self._claimable():
            return NO_ROW
        return self._export(request, boundary, rolling=False).row

    def rolling_export(self, request: Request, ceiling: int) -> Export | None:
        """The row and boundary that a lane of `ceiling` rows carries, if a boundary is within its reach."""
        if not (self.recurrent and self._gives(request.share)):
            return None
        pending = next((export for export in request.share.exports if export.rolling), None)
        if pending is not None:
            return None if pending.written else pending
        # A queued round does not carry it, so it must lie beyond what those may reach.
        reached = request.known - 1 + request.may_emit
        boundary = (reached // PAGE_TOKENS + 1) * PAGE_TOKENS
        if boundary > min(reached + ceiling, request.limit) or not self._claimable():
            return None
        return self._export(request, boundary, rolling=True)

    def advanced(self, request: Request, consumed: int) -> None:
        """A sound record says how far the device has come."""
        share = request.share
        share.consumed = consumed
        if not self._active:
            return
        for export in share.exports:
            export.written = export.written or export.boundary <= consumed
        self.publish(request)

    def publish(self, request: Request) -> None:
        """Gives the tree what it may have by now: full pages whose tokens stand, and the rows at their ends."""
        share = request.share
        if not self._gives(share):
            return
        full = min(share.consumed, request.prompt_length + request.acknowledged) // PAGE_TOKENS
        depth = 0 if share.node is None else share.node.depth
        if full > depth:
            tokens = request.tokens[depth * PAGE_TOKENS : full * PAGE_TOKENS]
            share.node, taken = self.cache.extend(share.node, tokens, request.pages[depth:full])
            self._pool.share(request.number, taken)
        for export in [e for e in share.exports if e.written and e.boundary <= full * PAGE_TOKENS]:
            share.exports.remove(export)
            self._attach(share, export)

    def distrust(self, request: Request) -> None:
        """The device refused its state: nobody starts from what it gave any more, nor from what it started from.

        Which of these pages was bad is not known, so that its whole text leaves the tree, with all that goes on from
        there. Others that read them go on, but give nothing any more.
        """
        share = request.share
        share.sound = False
        if share.node is not None:
            self._take_back(self.cache.cut(share.node))

    def room(self, count: int) -> bool:
        """Makes `count` pages free if that many are nobody's; otherwise evicts nothing."""
        if self._pool.free >= count:
            return True
        if self.available < count:
            self._settle_all()
        if self.available < count:
            return False
        self._take_back(self.cache.evict(count - self._pool.free))
        return True

    def fold(self, request: Request) -> bool:
        """Gives up the request's copies of pages that the tree has too; whether there were any.

        Rounds that are queued read the copies before anybody later can write them.
        """
        node = request.share.node
        doubled = [] if node is None or node.cut else [n for n in node.path() if request.pages[n.depth - 1] != n.page]
        for member in doubled:
            self._pool.give_back(request.number, [request.pages[member.depth - 1]])
            request.pages[member.depth - 1] = request.table[member.depth - 1] = member.page
        return bool(doubled)

    def leave(self, request: Request, settling: bool) -> None:
        """The request leaves the device. With `settling`, full pages that may yet be acknowledged are kept."""
        share, number = request.share, request.number
        self._unpin(share)
        full = share.consumed // PAGE_TOKENS if settling and self._gives(share) else 0
        self._pool.release(number, self._pool.owned(number, request.pages[full:]))
        del request.pages[full:]
        self._rows += [export.row for export in share.exports if not full or not export.written]
        share.exports = [export for export in share.exports if full and export.written]
        if self._pool.owned(number, request.pages) or share.exports:
            self._settling[number] = request
        else:
            self._drop(request)

    def settle(self, request: Request) -> None:
        """Nothing more will be acknowledged: what the request still holds goes back."""
        if self._settling.pop(request.number, None) is not None:
            self._drop(request)

    def close(self, request: Request) -> None:
        """Undoes `open` for a request that was not admitted."""
        self._unpin(request.share)
        self._drop(request)

    def _settle_all(self) -> None:
        for request in tuple(self._settling.values()):
            self.settle(request)

    def _drop(self, request: Request) -> None:
        share, number = request.share, request.number
        self._pool.release(number, self._pool.owned(number, request.pages))
        self._rows += [export.row for export in share.exports]
        request.pages.clear()
        request.share = Share()
        if share.node is not None:
            self._take_back(self.cache.drop(share.node))

    def _gives(self, share: Share) -> bool:
        """Whether the tree takes anything of a request."""
        return self._active and share.sound and not (share.node is not None and share.node.cut)

    def _attach(self, share: Share, export: Export) -> None:
        """A written row whose tokens stand goes to its node; a generation's row before it goes back."""
        if share.node is None:
            self._rows.append(export.row)
            return
        node = share.node.at(export.boundary)
        attached = self.cache.attach(node, export.row)
        if not attached:
            self._rows.append(export.row)
        if export.rolling:
            before, row = share.rolling, share.rolling_row
            share.rolling, share.rolling_row = (node, export.row) if attached else (None, NO_ROW)
            if before is not None and before.row == row and not before.branches and not before.pins:
                self._rows.append(self.cache.detach(before))

    def _export(self, request: Request, boundary: int, rolling: bool) -> Export:
        export = Export(self._rows.pop(), boundary, rolling)
        request.share.exports.append(export)
        return export

    def _claimable(self) -> bool:
        """Whether there is a free row, perhaps after the tree gave up the one that was least recently used."""
        if not self._active:
            return False
        if not self._rows:
            row = self.cache.evict_row()
            self._rows += [row] if row != NO_ROW else []
        return bool(self._rows)

    def _unpin(self, share: Share) -> None:
        if share.pinned and share.source is not None:
            share.pinned = False
            self.cache.unpin(share.source)

    def _take_back(self, freed: Freed) -> None:
        self._pool.give_back(CACHE, freed.pages)
        self._rows += freed.rows
