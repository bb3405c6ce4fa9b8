"""A tiny Qwen3.8 with its drafter under the scheduler's real policies: preempted, and back through the prefix cache.

No sockets, two rounds in flight, and too few pages; whatever no request may read is NaN when a round runs.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from recipes.declaration import PreparationConfig
from services.scheduler.controller import FixedWidth
from services.scheduler.pages import NOBODY
from shared.frames import FRAMES
from shared.manifest import PAGE_TOKENS
from tests.acceptance.cores import (
    SharingHost,
    agreeing,
    drafter_of,
    opened,
    small_architecture,
    target_of,
    write_core,
)
from tests.scheduler.cores import mixing
from tests.scheduler.desk import Desk, submit
from tests.scheduler.serving import words

BUDGET, END = 130, 263
PROMPTS = {f"r{kind}": [token % 256 for token in words(count, kind)] for kind, count in enumerate((64, 70, 66), 1)}
LAWS: dict[str, dict[str, float]] = {"plain": {}, "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.3}}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharingHost]:
    """Five pages, of which one request may come to need four."""
    config = PreparationConfig(
        draft_tokens=7, context_length=256, prefill_buckets=(16, 64), mixed_chunk=32, snapshot_slots=12, pages=5
    )
    folder = tmp_path_factory.mktemp("preemption")
    with opened(write_core(folder, small_architecture(), config, agreeing), 96) as opening:
        yield opening


class RealDesk(Desk):
    """Its rounds are those of a worker's catalog; `accepted` says of each admission how many drafts had been right."""

    def __init__(self, host: SharingHost, cache: bool, drafts: int | None) -> None:
        self.host = host
        self.accepted: list[int] = []
        super().__init__(host.manifest, mixing, FixedWidth(), drafts, cache)
        self.plans, self.outs = list(host.plans), list(host.completions)

    def attach(self, rows: int) -> None:
        super().attach(rows)
        self.host.catalog.reset()
        self.host.catalog.counter = 0

    def plan(self) -> bool:
        found = super().plan()
        self.accepted += [request.counts.accepted_learned for request in self.admitted[len(self.accepted) :]]
        return found

    def replay(self) -> None:
        if self.replayed < self.sequence:
            self.poison()
            self.host.catalog.replay(int(self.plans[self.replayed % FRAMES].graph[0]))
            self.replayed += 1

    def poison(self) -> None:
        """NaN in pages, slots and snapshot rows that are nobody's, and that no queued round was planned with."""
        pool, state, slots = self.roster.pool, target_of(self.host).state, self.core.geometry.concurrency
        frames = [self.plans[sequence % FRAMES] for sequence, _ in self.queued]
        wanted = {int(page) for frame in frames for page in (*frame.page_table.flat, *frame.chunk_page_table)}
        free = [page for page in range(pool.total) if pool.owner_of(page) == NOBODY and page not in wanted]
        places = torch.tensor([page * PAGE_TOKENS + at for page in free for at in range(PAGE_TOKENS)], dtype=torch.long)
        for cache in (*target_of(self.host).caches.values(), drafter_of(self.host).cache):
            cache.keys[:, places] = cache.values[:, places] = torch.nan
            cache.groups[places[:: cache.ratio] // cache.ratio] = torch.nan
        read = {int(frame.snapshot_row[0]) for frame in frames}
        rows = set(range(slots)) - {request.slot for request in self.roster.active}
        rows |= {slots + row for row in self.prefixes._rows if row not in read}
        for part in (*state.matrices.values(), *state.convolutions.values(), drafter_of(self.host).tails):
            part[sorted(rows)] = torch.nan


def served(host: SharingHost, names: tuple[str, ...], law: dict[str, float], cache: bool) -> RealDesk:
    """All of these at once: with the cache and seven drafts, or without either."""
    desk = RealDesk(host, cache, None if cache else 0)
    for name in names:
        desk.submit(submit(name, PROMPTS[name], BUDGET, (END,), temperature=0.0, **law))
    desk.drain(acknowledging=True)
    assert not desk.roster.failures
    return desk


@pytest.mark.parametrize("law", LAWS)
def test_a_preempted_request_comes_back_with_its_drafts_and_says_what_it_says_alone(
    host: SharingHost, law: str
) -> None:
    alone = {name: served(host, (name,), LAWS[law], cache=False).output[name] for name in PROMPTS}
    desk = served(host, tuple(PROMPTS), LAWS[law], cache=True)
    assert desk.output == alone
    names = [name for name, _ in desk.cached]
    again = [index for index, (name, hit) in enumerate(desk.cached) if hit and name in names[:index]]
    assert len(again) == desk.roster.preemptions > 0
    for index in again:
        assert desk.admitted[index].counts.accepted_learned > desk.accepted[index]


@pytest.mark.parametrize("drafts", [0, None], ids=["ordinary", "drafting"])
def test_a_hit_counts_the_pairs_that_the_drafter_has_absorbed(host: SharingHost, drafts: int | None) -> None:
    """Ordinary serving absorbs none, neither at the end of a chunk nor where a generation crosses a boundary."""
    desk, prompt = RealDesk(host, cache=True, drafts=drafts), PROMPTS["r2"]
    for name, hit in (("cold", 0), ("chunk's row", PAGE_TOKENS), ("generation's row", 2 * PAGE_TOKENS)):
        desk.submit(submit(name, prompt, 70, temperature=0.0))
        desk.drain(acknowledging=True)
        assert desk.cached[-1] == (name, hit)
        absorbed = 0 if drafts == 0 else len(prompt) + 70 - 2
        assert int(host.catalog.state.draft_cache[0]) == absorbed
        prompt = prompt if name == "cold" else prompt + desk.output["cold"][:60]
