"""The prefix cache through real processes: a tiny Qwen3.8-Flash with its MTP drafter, and T1 whose pages are enough.

Two servers of row-invariant arithmetic get the same requests, one of them without a cache: ids, log probabilities and
draft counts must be equal to the last bit, and the other one must have computed less. Requests go over the scheduler's
own channel, since answers of a random model are no valid text; `usage` is asked over HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recipes.declaration import PreparationConfig
from recipes.qwen38.recipe import Qwen38
from recipes.qwen38.tiny import tiny_architecture, write_tiny
from shared import metrics
from shared.manifest import PAGE_TOKENS
from shared.messages.common import DraftCounts, TokenLogprobs
from tests.fixtures.harness import Server, wait_until
from tests.fixtures.scripted.recipe import COPIES, make_core
from tests.fixtures.scripted.script import next_token
from tests.fixtures.scripted.vocabulary import TURN_END, encode
from tests.scheduler.conftest import BareFrontend
from tests.system.scrapes import scrape

ARGUMENTS = ("--deterministic", "--threads", "1", "--no-history-drafts", "--no-prompt-drafts")
SAMPLED = {"temperature": 1.0, "top_k": 3, "seed": 7}
GREEDY = {"temperature": 0.0}


@dataclass(frozen=True)
class Said:
    """What a request was told; `cached` is how much of its prompt was found."""

    tokens: list[int]
    logprobs: list[TokenLogprobs]
    counts: DraftCounts
    cached: int


class Caller:
    """A frontend without a client."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._frontend = BareFrontend(server.run_dir)
        self._names = count()

    def ask(self, prompt: list[int], budget: int = 4, **law: Any) -> Said:
        return self.ask_all([prompt], budget, **law)[0]

    def ask_all(self, prompts: list[list[int]], budget: int, **law: Any) -> list[Said]:
        """Answers to requests that are sent together."""
        names = [f"r{next(self._names)}" for _ in prompts]
        for name, prompt in zip(names, prompts, strict=True):
            self._frontend.submit(name, prompt, budget, logprobs=20, **law)
        self._frontend.wait_over(*names, seconds=60)
        assert not self._frontend.failed
        return [self._said(name) for name in names]

    def _said(self, name: str) -> Said:
        deltas = [delta for delta in self._frontend.deltas if delta.request == name]
        [cached] = {delta.cached_tokens for delta in deltas}
        logprobs = [entry for delta in deltas for entry in delta.logprobs]
        return Said(self._frontend.output[name], logprobs, deltas[-1].counts, cached)

    def close(self) -> None:
        self._frontend.close()


@dataclass(frozen=True)
class Pair:
    """The same core with and without a cache."""

    cached: Caller
    plain: Caller

    def ask(self, prompt: list[int], budget: int = 4, **law: Any) -> Said:
        """What both say, which must be equal but for how much was cached."""
        return self.ask_all([prompt], budget, **law)[0]

    def ask_all(self, prompts: list[list[int]], budget: int = 4, **law: Any) -> list[Said]:
        """Together, how wide their rounds are hangs on the moment at which each arrives."""
        found = self.cached.ask_all(prompts, budget, **law)
        for said, expected in zip(found, self.plain.ask_all(prompts, budget, **law), strict=True):
            assert expected.cached == 0
            assert (said.tokens, said.logprobs) == (expected.tokens, expected.logprobs)
            assert said.counts == expected.counts or len(prompts) > 1
        return found


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prefixes")
    write_tiny(folder / "checkpoint", tiny_architecture(), seed=2)
    small = PreparationConfig(context_length=256, draft_tokens=3, prefill_buckets=(32, 128), mixed_chunk=32)
    config = replace(small, pages=16, snapshot_slots=6)
    Qwen38().export(folder / "checkpoint", folder / "core", config, lambda what, done, total: None)
    return folder / "core"


@pytest.fixture(scope="module")
def pair(core: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        servers = [stack.enter_context(Server(core, (*ARGUMENTS, *more))) for more in ((), ("--no-prefix-cache",))]
        callers = []
        for server in servers:
            server.wait_ready()
            callers.append(Caller(server))
            stack.callback(callers[-1].close)
        yield Pair(*callers)
        wait_until(lambda: idle(servers[0]), 10, "every page is free, or the cache's alone")


def idle(server: Server) -> bool:
    found = scrape(server, "scheduler")
    return found.total(metrics.PAGES_FREE) == found.total(metrics.PAGES) > 0


def words(seed: int, length: int) -> list[int]:
    found: list[int] = np.random.default_rng(seed).integers(0, 250, length).tolist()
    return found


@pytest.mark.parametrize("length", [63, 64, 65, 127, 128, 129])
def test_a_prompt_sent_twice_says_the_same_from_its_last_boundary_on(pair: Pair, length: int) -> None:
    """The first token's twenty log probabilities too."""
    prompt = words(1000 + length, length)
    cold, warm = (pair.ask(prompt, temperature=0.0) for _ in range(2))
    assert (cold.cached, warm.cached) == (0, length // PAGE_TOKENS * PAGE_TOKENS)
    assert (warm.tokens, warm.logprobs, warm.counts) == (cold.tokens, cold.logprobs, cold.counts)
    assert len(warm.logprobs[0].top) == 20


@pytest.mark.parametrize("length", [128, 130])
def test_drafts_behind_a_cached_prefix_are_accepted_as_in_the_cold_run(pair: Pair, length: int) -> None:
    """B18: the drafter's pairs of the prefix lie in its pages, its open group and tail in the row."""
    prompt = words(2000 + length, length)
    # A law so flat that drafts of random weights are accepted now and then.
    cold, warm = (pair.ask(prompt, 16, temperature=2.0, seed=3) for _ in range(2))
    assert (cold.cached, warm.cached) == (0, 128)
    assert (warm.tokens, warm.logprobs, warm.counts) == (cold.tokens, cold.logprobs, cold.counts)
    assert 0 < warm.counts.accepted_learned < warm.counts.offered_learned


@pytest.mark.parametrize("before", range(1, 9))
def test_a_boundary_crossed_inside_a_round_is_where_the_next_turn_starts(pair: Pair, before: int) -> None:
    prompt = words(100 + before, PAGE_TOKENS - before)
    said = pair.ask(prompt, 8 + before, **GREEDY)
    following = [*prompt, *said.tokens, *words(200 + before, 3 + before)]
    assert pair.ask(following, 6, **SAMPLED).cached == PAGE_TOKENS


def test_tails_of_one_prefix_share_it_and_say_what_they_would_alone(pair: Pair) -> None:
    trunk = words(300, 2 * PAGE_TOKENS)
    found = [pair.ask(trunk + words(301 + tail, 70 + tail), 5, **SAMPLED).cached for tail in range(3)]
    assert found == [0, 0, 2 * PAGE_TOKENS], "the second one leaves a row where it parts"
    together = pair.ask_all([trunk + words(310 + tail, 10) for tail in range(4)], 5, **GREEDY)
    assert [said.cached for said in together] == [2 * PAGE_TOKENS] * 4


def test_penalties_over_a_cached_prefix_are_those_of_a_cold_request(pair: Pair) -> None:
    """Longer than a chunk, so that it is noted piece by piece; a whole prompt, and one with a tail."""
    law = {**SAMPLED, "repetition_penalty": 1.5, "frequency_penalty": 0.7, "presence_penalty": 0.4}
    for length in (192, 197):
        prompt = words(400 + length, length)
        assert pair.ask(prompt, 1, **GREEDY).cached == 0
        assert pair.ask(prompt, 12, **law).cached == 192


def test_more_prefixes_than_pages_and_rows_come_and_go(pair: Pair) -> None:
    """16 pages and 6 rows: the oldest make room, the newest hit, and nobody is preempted."""
    for seed in range(9):
        assert pair.cached.ask(words(500 + seed, 130), 1, **GREEDY).cached == 0
    assert pair.ask(words(508, 130), 4, **GREEDY).cached == 128
    assert pair.cached.ask(words(500, 130), 1, **GREEDY).cached == 0
    counted = scrape(pair.cached.server, "scheduler")
    assert counted.total(metrics.PREEMPTIONS) == 0
    assert 0 < counted.total(metrics.PREFIX_ROWS) <= 6
    assert 0 < counted.total(metrics.PREFIX_PAGES) <= counted.total(metrics.PAGES)
    assert 0 < counted.total(metrics.PREFIX_HITS) < counted.total(metrics.PREFIX_QUERIES)
    uncached = scrape(pair.plain.server, "scheduler")
    assert uncached.total(metrics.PREFIX_PAGES) == uncached.total(metrics.PREFIX_HITS) == 0


def test_preempted_requests_come_back_through_the_cache_and_say_what_they_would_have(tmp_path: Path) -> None:
    with Server(make_core(tmp_path / "core", pages=17), ARGUMENTS[3:]) as server:
        server.wait_ready()
        caller = Caller(server)
        prompts = [[*encode(f"tell me of {topic} " + "at length " * 9), TURN_END] for topic in ("a", "b", "c", "d")]
        for prompt, said in zip(prompts, caller.ask_all(prompts, 500, temperature=0.0), strict=True):
            assert said.tokens == scripted(prompt, 500)
        assert scrape(server, "scheduler").total(metrics.PREEMPTIONS) > 0
        again = [line for line in server.log.splitlines() if '"request.admitted"' in line and '"cached":0' not in line]
        assert again
        caller.close()
        wait_until(lambda: idle(server), 10, "every page is free, or the cache's alone")


def scripted(prompt: list[int], budget: int) -> list[int]:
    """What T1 says to a prompt."""
    ids = np.array(prompt, dtype=np.int64)
    for _ in range(budget):
        ids = np.append(ids, next_token(ids))
    found: list[int] = ids[len(prompt) :].tolist()
    return found


def test_the_demo_model_says_the_same_behind_a_cached_prefix(demo_core: Path) -> None:
    """SmolLM2, whose pages are enough, in row-invariant arithmetic: the chunks are others, the numbers are not."""
    with Server(demo_core, ("--deterministic", *ARGUMENTS[3:])) as server:
        server.wait_ready()
        caller = Caller(server)
        for length in (63, 64, 65, 130):
            prompt = [1 + (7 * place * place + 11 * length) % 40_000 for place in range(length)]
            cold, warm = (caller.ask(prompt, 3, temperature=0.0) for _ in range(2))
            assert (cold.cached, warm.cached) == (0, (length - 1) // PAGE_TOKENS * PAGE_TOKENS)
            assert (warm.tokens, warm.logprobs) == (cold.tokens, cold.logprobs)
        caller.close()


def test_where_pages_are_enough_a_prompt_goes_on_behind_them(tmp_path: Path) -> None:
    """T1 with copies alone has no state but its pages, and needs no row: it notices every wrong token in them."""
    with Server(make_core(tmp_path / "core", COPIES, snapshot_slots=0), ("--no-history-drafts",)) as server:
        server.wait_ready()
        caller = Caller(server)
        said = encode("hello " * 30)
        prompt = [*encode("say:" + "hello " * 30), TURN_END]
        assert len(prompt) < 2 * PAGE_TOKENS
        for law in (GREEDY, SAMPLED, {**GREEDY, "presence_penalty": 0.001}):
            answers = [caller.ask(prompt, 40, **law) for _ in range(2)]
            assert answers[0].tokens == answers[1].tokens
            if law is not SAMPLED:
                assert answers[0].tokens == list(said[:40])
            assert answers[1].cached == PAGE_TOKENS * (len(prompt) > PAGE_TOKENS)
        longer = [*prompt, *answers[0].tokens, TURN_END]
        assert caller.ask(longer, 4, **GREEDY).cached >= PAGE_TOKENS
        caller.close()
        wait_until(lambda: idle(server), 10, "every page is free, or the cache's alone")
