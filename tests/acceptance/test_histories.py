"""Histories of candidate rows: each row sees its own prefix, and rejected ones leave nothing behind."""

from __future__ import annotations

import pytest
import torch

from recipes.components.model import Lane, rows_of
from recipes.components.paged_attention import token_rows
from shared.frames import Meta, Status
from shared.messages.common import Sampling
from tests.acceptance.cores import drafter_of, target_of
from tests.acceptance.states import NEAR, caches_of, committed, pages_of, poison, same
from tests.acceptance.texts import WARM, finish, forced, greedy, plain
from tests.worker.host import Host, LanePlan
from tests.worker.qwen38_talk import GREEDY, prompt_of


@pytest.mark.parametrize("length", [61, 62, 63, 64])
def test_each_verified_row_sees_its_own_candidate_prefix(host: Host, length: int) -> None:
    """ "Each row sees exactly its causal candidate prefix"; "a proposed token affects only the candidate prefix that
    contains it": n-gram ids, convolutions, recurrence and attention of every row, wrong drafts included."""
    prompt, rows = prompt_of(length, length), prompt_of(900 + length, 8)
    target = target_of(host)
    host.start(0, prompt, GREEDY, 40)
    poison(host)
    lane = Lane(0, 0, len(rows), length, pages_of(host, 0))
    vectors = target.forward(rows_of(torch.tensor(rows), (lane,)))
    target.commit(lane, 0)
    for row in range(len(rows)):
        host.start(3, (*prompt, *rows[: row + 1]), GREEDY, 1)
        torch.testing.assert_close(vectors[row], host.catalog.state.vectors[3], rtol=0, atol=NEAR)


def test_token_histories_are_of_what_was_consumed(host: Host) -> None:
    """ "PLE hashing reads committed history": the tokens before the next row, exactly, at every accepted count."""
    prompt = prompt_of(3, 62)
    text = greedy(host, prompt, 9)
    for right in range(8):
        first = host.start(0, prompt, GREEDY, 40)
        record = host.round([forced(first, 0, prompt, text, right, 7)], 8)[0]
        known = (*prompt, *text)[: record[Meta.CONSUMED]]
        assert tuple(target_of(host).state.tokens[0].tolist()) == known[-2:]
        assert int(host.catalog.state.previous[0]) == known[-1]


@pytest.mark.parametrize("right", range(8))
def test_rejected_rows_are_beyond_every_logical_length(host: Host, right: int) -> None:
    """ "QSA may physically retain rejected KV and selector rows, but logical lengths, raw tags and interval anchors
    must exclude them": whatever lies there, the text goes on as it does without it."""
    prompt = prompt_of(17, 58 + right)
    text = greedy(host, prompt, 24)
    record = host.start(1, prompt, GREEDY, 24)
    record = host.round([forced(record, 1, prompt, text, right, 7)], 8)[1]
    said = [text[0], *record.tokens]
    poison(host)
    while record[Meta.STATUS] == Status.RUNNING:
        record = host.round([LanePlan(1, 8)], 8)[1]
        said.extend(record.tokens)
        poison(host)
    assert tuple(said) == text


def test_a_slot_that_takes_no_part_keeps_every_bit(host: Host) -> None:
    """ "Inactive rows never update another request's state"."""
    for slot in range(4):
        host.start(slot, prompt_of(slot, 60 + slot), WARM, 60)
    resting = (1, 3)
    before = [committed(host, slot) for slot in resting]
    for _ in range(3):
        host.round([LanePlan(0, 8), LanePlan(2, 5)], 8)
    for slot, state in zip(resting, before, strict=True):
        for name, value in committed(host, slot).items():
            assert same(value, state[name]), (slot, name)


def test_rows_beyond_the_ceiling_write_nothing(host: Host) -> None:
    """ "Masked positions cannot write KV or commit request state": a lane of two rows in a graph of eight."""
    host.start(0, prompt_of(5, 60), WARM, 40)
    host.start(1, prompt_of(6, 60), WARM, 40)
    poison(host)
    host.round([LanePlan(0, 2), LanePlan(1, 8)], 8)
    cache = target_of(host).caches[1]
    written = token_rows(pages_of(host, 0), 60, 10)
    finite = cache.keys[:, written].isfinite().all(-1).all(0).tolist()
    assert finite == [True, True, *[False] * 8]


@pytest.mark.parametrize("law", ["repetition", "frequency", "presence"])
def test_prompt_counts_once_output_once_and_rejected_drafts_never(host: Host, law: str) -> None:
    """ "Prompt counts are initialized once, generated counts advance once, and rejected proposals never enter committed
    state or public output"."""
    penalty = {"repetition": 1.3, "frequency": 0.6, "presence": 0.6}[law]
    sampling = Sampling(**{"temperature": 1.0, "top_k": 4, "seed": 8, f"{law}_penalty": penalty})  # type: ignore[arg-type]
    prompt = prompt_of(21, 40)
    text = plain(host, prompt, sampling, 30)
    state = host.catalog.state
    record = host.start(0, prompt, sampling, 30)
    turn, offered, accepted = 0, 0, 0
    while record[Meta.STATUS] == Status.RUNNING:
        lane = forced(record, 0, prompt, text, turn % 8, min(7, 30 - record[Meta.GENERATED] - 1))
        record = host.round([lane], 8)[0]
        turn += 1
        offered, accepted = offered + record[Meta.OFFERED], accepted + record[Meta.ACCEPTED]
        said = text[: record[Meta.GENERATED]]
        assert record.tokens == said[len(said) - record[Meta.EMITTED] :]
        counts = torch.bincount(torch.tensor(said), minlength=state.vocab_size)
        assert torch.equal(state.counts[0], counts.int())
        seen = torch.zeros(state.vocab_size, dtype=torch.bool)
        seen[[*prompt, *said]] = True
        assert torch.equal(state.seen[0], seen)
    assert 0 < accepted < offered


def test_a_reused_slot_has_nothing_of_its_last_request(host: Host) -> None:
    """ "slot generations": the same request in a slot that others have used and left in the middle."""
    prompt = prompt_of(77, 63)
    sampling = Sampling(temperature=1.0, top_k=4, top_p=0.95, seed=5, presence_penalty=0.4)
    wanted = finish(host, host.start(2, prompt, sampling, 30), 2, 8)
    for seed in range(3):
        host.start(2, prompt_of(seed, 90), Sampling(temperature=1.0, seed=seed, repetition_penalty=1.4), 60)
        host.round([LanePlan(2, 8)], 8)
    state, drafter = target_of(host).state, drafter_of(host)
    for tensor in (*state.matrices.values(), *state.convolutions.values(), state.ngram_history, drafter.tails):
        tensor[2] = torch.nan
    for cache in caches_of(host).values():
        cache.rings.keys[2] = torch.nan
        own = token_rows(pages_of(host, 2), 0, 256)
        cache.keys[:, own] = cache.values[:, own] = torch.nan
    assert finish(host, host.start(2, prompt, sampling, 30), 2, 8) == wanted
    assert int(drafter_of(host).consumed[2]) == len(prompt) + len(wanted) - 1
