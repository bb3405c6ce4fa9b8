"""Random draws of speculative rounds: none is used twice, and none depends on lanes, neighbours or proposals."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from recipes.components import philox
from recipes.components.model import DraftTask
from recipes.qwen38.cache import AttentionCache
from shared.frames import Meta, Status
from shared.messages.common import Sampling
from tests.acceptance.cores import SharingHost, drafter_of
from tests.acceptance.states import committed, pages_of, same
from tests.acceptance.texts import WARM, finish, forced, plain
from tests.worker.host import LanePlan, Record
from tests.worker.qwen38_talk import prompt_of

BUDGET = 32


def sampling(seed: int) -> Sampling:
    return Sampling(temperature=1.0, top_k=4, top_p=0.95, seed=seed)


def test_no_draw_is_used_twice(host: SharingHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """ "Draft randomness and target acceptance/correction randomness have separate declared domains"; "Reserve
    nonoverlapping ranges": over learned, copied and plain rounds of every width, rejections among them."""
    used: Counter[tuple[int, int]] = Counter()
    honest = philox.uniforms

    def counted(key: int, offset: int, count: int) -> list[float]:
        used.update((key, offset + place) for place in range(count))
        return honest(key, offset, count)

    prompt = prompt_of(4, 30)
    text = plain(host, prompt, sampling(6), BUDGET)
    monkeypatch.setattr(philox, "uniforms", counted)
    record = host.start(0, prompt, sampling(6), BUDGET)
    rejected, turn = 0, 0
    while record[Meta.STATUS] == Status.RUNNING:
        width = 1 + (3 * turn) % 8
        lane = LanePlan(0, width) if turn % 2 else forced(record, 0, prompt, text, 1, min(3, width - 1))
        record = host.round([LanePlan(0, width, lane.copies, lane.anchor)], width)[0]
        rejected += record[Meta.OFFERED] - record[Meta.ACCEPTED]
        turn += 1
    assert rejected > 3
    assert len({key for key, _ in used}) == 3, "a stream for each domain"
    assert max(used.values()) == 1


def test_a_text_is_the_same_at_any_lane_and_in_any_company(host: SharingHost) -> None:
    """ "Philox subsequence zero is independent of packed lane position. Preserve this property for speculative
    requests"."""
    prompts = {slot: prompt_of(30 + slot, 33 + slot) for slot in range(4)}
    alone = {slot: finish(host, host.start(slot, prompts[slot], sampling(slot), BUDGET), slot, 5) for slot in range(4)}
    assert len(set(alone.values())) == 4
    for order in ((3, 1, 0, 2), (2, 0, 1, 3)):
        records: dict[int, Record] = {
            slot: host.start(slot, prompts[slot], sampling(slot), BUDGET) for slot in range(4)
        }
        said = {slot: list(record.tokens) for slot, record in records.items()}
        while any(record[Meta.STATUS] == Status.RUNNING for record in records.values()):
            records.update(host.round([LanePlan(slot, 5) for slot in order], 5))
            for slot in order:
                said[slot].extend(records[slot].tokens)
        assert {slot: tuple(tokens) for slot, tokens in said.items()} == alone


def test_proposals_leave_no_trace_in_committed_state(host: SharingHost) -> None:
    """ "Proposal RNG and histories are separate from committed sampling state": drafts that nobody verifies."""
    prompt = prompt_of(12, 61)
    wanted = finish(host, host.start(0, prompt, sampling(3), BUDGET), 0, 4)
    record = host.start(0, prompt, sampling(3), BUDGET)
    said, state = list(record.tokens), host.catalog.state
    for draw in (0.1, 0.5, 0.9) * BUDGET:
        if record[Meta.STATUS] != Status.RUNNING:
            break
        before = committed(host, 0)
        pending, consumed = int(state.pending[0]), int(state.consumed[0])
        task = DraftTask(0, consumed, pending, 7, pages_of(host, 0), torch.full((7,), draw), state.values[0])
        drafter_of(host).propose(task)
        after = committed(host, 0)
        changed = {name for name in before if not same(after[name], before[name])}
        assert changed <= {"drafter: rejected tags"}, "what was proposed lies there until a round is committed"
        record = host.round([LanePlan(0, 4)], 4)[0]
        said.extend(record.tokens)
    assert tuple(said) == wanted


def test_only_recursive_proposals_reuse_a_selection(host: SharingHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """ "Public QSA draft reuse omits selection work and must never be used in target verification"; "Proposal-only;
    reset on round or request identity changes"."""
    calls: list[tuple[bool, int, bool]] = []
    honest = AttentionCache.attend
    draft_cache = drafter_of(host).cache

    def noted(self: AttentionCache, block: Any, rows: Any, lane: Any, reuse: Tensor | None = None) -> Any:
        calls.append((self is draft_cache, lane.count, reuse is not None))
        return honest(self, block, rows, lane, reuse)

    monkeypatch.setattr(AttentionCache, "attend", noted)
    host.start(0, prompt_of(2, 40), WARM, BUDGET)
    calls.clear()
    for width in (4, 1, 3):
        host.round([LanePlan(0, width)], width)
        proposals = [(True, 1, depth > 0) for depth in range(width - 1)]
        assert calls == [*proposals, (False, width, False)], "verification selects anew, absorbing selects nothing"
        calls.clear()
