"""Scored prefill: each row of a chunk tells how likely the token behind it was, as decoding the same text tells it."""

from __future__ import annotations

import numpy as np
import pytest

from shared.frames import Fault, Meta, Status
from shared.messages.common import Sampling
from tests.fixtures.scripted.vocabulary import END_IDS
from tests.worker.host import Host, LanePlan, Record
from tests.worker.test_rounds import prompt

TOP = 3
LAW = Sampling(temperature=0.8, logprobs=TOP, frequency_penalty=0.4, top_k=9, seed=6)
Scores = list[tuple[float, tuple[float, ...]]]


def told(host: Host, record: Record, place: int, count: int) -> Scores:
    """Log probabilities from row `place` of a frame on, with those of the alternatives."""
    frame = host.completions[record[Meta.SEQUENCE] % 2]
    tops = frame.top_logprobs.reshape(-1, frame.top_logprobs.shape[-1])
    rows = range(place, place + count)
    return [(float(frame.logprobs.flat[row]), tuple(tops[row, :TOP].tolist())) for row in rows]


def generated(host: Host, text: tuple[int, ...], budget: int) -> tuple[list[int], Scores]:
    """What the model says after `text`, one token a round, and what it told of that."""
    record = host.start(0, text, LAW, budget, END_IDS)
    tokens, scores = list(record.tokens), told(host, record, 0, 1)
    while record[Meta.STATUS] == Status.RUNNING:
        record = host.round([LanePlan(0)], 1)[0]
        tokens += record.tokens
        scores += told(host, record, 0, record[Meta.EMITTED])
    return tokens, scores


def scored(host: Host, slot: int, text: tuple[int, ...], sizes: list[int]) -> Scores:
    """Of every token but the first, by chunks of these sizes in turn."""
    host.init(slot, len(text), LAW, 4, END_IDS)
    found, start = Scores(), 0
    while start < len(text) - 1:
        size = min(sizes[len(found) % len(sizes)], len(text) - 1 - start)
        record = host.scored(slot, start, text[start : start + size], text[start + size])
        assert (record[Meta.EMITTED], record.faults, record[Meta.CONSUMED]) == (0, Fault.NONE, start + size)
        found += told(host, record, 0, size)
        start += size
    return found


@pytest.mark.parametrize("sizes", [[1], [32], [5, 1, 9]])
def test_a_scored_prompt_tells_what_generating_it_told(copies: Host, sizes: list[int]) -> None:
    text = prompt("free running text of this one")
    answer, wanted = generated(copies, text, 20)
    whole = (*text, *answer)
    found = scored(copies, 3, whole, sizes)
    assert len(found) == len(whole) - 1
    for (own, best), (own_wanted, best_wanted) in zip(found[len(text) - 1 :], wanted, strict=True):
        assert own == pytest.approx(own_wanted, abs=1e-5)
        assert best == pytest.approx(best_wanted, abs=1e-5)
    assert len({round(own, 3) for own, _ in found}) > 10
    # The prompt goes on as if nobody had scored it.
    last = copies.chunk(3, len(whole) - 1, whole[-1:], final=1)
    plain = copies.start(1, whole, LAW, 4, END_IDS)
    assert last.tokens == plain.tokens


def test_a_scored_chunk_needs_a_token_behind_it_and_draws_none(copies: Host) -> None:
    text = prompt("hello there")
    copies.init(0, len(text), LAW, 4, END_IDS)
    vocabulary = copies.manifest.geometry.vocab_size
    for behind in (-1, vocabulary):
        assert copies.scored(0, 0, text[:4], behind).faults == Fault.UNEXPECTED_PLAN
    ((_, bucket),) = set(copies.manifest.capacities("scored_prefill"))
    graph = copies.manifest.index_of("scored_prefill", 1, bucket)
    copies.fill_chunk(copies.plan(graph), 0, 0, text[:4], 1, 7, -1)
    assert copies.replay(graph)[0].faults == Fault.UNEXPECTED_PLAN
    assert copies.catalog.state.consumed[0] == 0
    record = copies.scored(0, 0, text[:4], text[4])
    assert (record.faults, record[Meta.CONSUMED]) == (Fault.NONE, 4)
    assert np.isfinite(told(copies, record, 0, 4)[0][0])
