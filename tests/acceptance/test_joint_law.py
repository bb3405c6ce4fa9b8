"""The joint law of two emitted tokens through the worker's real rounds, with real MTP proposals, is the target's.

The tiny Qwen3.8 at temperature 1, top-p 0.95 (the checkpoint's) and top-k 4. Every draw is a request with a seed of its
own, restored from one snapshot; its first token is the same for all, and the two after it are verified. The exact law,
sixteen pairs, is enumerated from the target's logits after a cold prefill of each conditional prefix.

A chi-square test fails below p = 1e-4. It finds a deviation of effect size w (the root of the sum of (o - e)^2 / e over
probabilities) in nine of ten runs from w = 0.33 on with 448 draws, 0.37 with 352, and 0.14 with all 2,528 together.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import pytest
import torch

from recipes.components.model import DraftTask, Proposal
from recipes.components.philox import ordinary
from recipes.declaration import PreparationConfig
from shared.frames import Meta, Source
from shared.messages.common import Sampling
from tests.acceptance.cores import LETTERS, agreeing, drafter_of, named, opened, small_architecture, write_core
from tests.components.laws import REJECT_BELOW, joint_p_value
from tests.worker.host import Host, LanePlan, Record

Broken = Callable[[Proposal], Proposal]
Kind = Literal["learned", "copied", "mixed"]
Pair = tuple[int, ...]
LANES, ROW, BUDGET = 16, 0, 40
TOP_K, TOP_P = 4, 0.95
PROMPT = tuple(LETTERS[(3 * i * i + 6 * i + i // 7) % len(LETTERS)] for i in range(61))
"""A round of four drafts crosses the page at 64, and begins inside a group of four."""
WAYS: dict[tuple[Kind, int], int] = {
    ("learned", 1): 448,
    ("learned", 2): 448,
    ("learned", 4): 448,
    ("mixed", 2): 352,
    ("mixed", 4): 352,
    ("copied", 1): 160,
    ("copied", 2): 160,
    ("copied", 4): 160,
}
"""Draws of each way of drafting, by its kind and depth."""
BROKEN_DRAWS = 288


def sampling(seed: int) -> Sampling:
    return Sampling(temperature=1.0, top_k=TOP_K, top_p=TOP_P, seed=seed)


def textbook(logits: torch.Tensor) -> dict[int, float]:
    """The filtered law by its definition, in plain Python: of the four best the smallest set that reaches top-p."""
    order = sorted(range(len(logits)), key=lambda token: -float(logits[token]))[:TOP_K]
    weights = {token: math.exp(float(logits[token]) - float(logits[order[0]])) for token in order}
    total, mass, kept = sum(weights.values()), 0.0, []
    for token in order:
        kept.append(token)
        mass += weights[token] / total
        if mass >= TOP_P:
            break
    return {token: weights[token] / sum(weights[one] for one in kept) for token in kept}


@dataclass(slots=True)
class Tally:
    """What the draws of one way of drafting gave. `cases`: accepted drafts among the first two rows, of how many."""

    pairs: Counter[Pair] = field(default_factory=Counter)
    cases: Counter[tuple[int, int]] = field(default_factory=Counter)
    sources: Counter[Source] = field(default_factory=Counter)
    by_seed: dict[int, Pair] = field(default_factory=dict)


class Experiment:
    """One prefix with its pending token, its exact law and as many draws of it as are wanted."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._made: dict[tuple[Kind, int], Tally] = {}
        for slot in range(LANES):  # every slot's own pages hold the prefix; the rest of its state is the snapshot's
            host.start(slot, PROMPT, sampling(0), BUDGET)
        named(host, "snapshot", 0, ROW)
        first = self._law(PROMPT)
        self.pending = max(first, key=lambda token: first[token])
        after = self._law((*PROMPT, self.pending))
        self.exact: dict[Pair, float] = {
            (a, b): p * q for a, p in after.items() for b, q in self._law((*PROMPT, self.pending, a)).items()
        }
        self.likely = self._likely(4)
        for slot in range(LANES):
            host.start(slot, PROMPT, sampling(0), BUDGET)
        self.proposed = self._proposed()
        below = sum(p for token, p in first.items() if token < self.pending)
        self._share = (below, below + first[self.pending])

    def _law(self, tokens: tuple[int, ...]) -> dict[int, float]:
        """The law of the token after `tokens`, computed from the first token on."""
        host = self.host
        host.start(0, tokens, sampling(0), BUDGET)
        return textbook(host.catalog.model.logits(host.catalog.state.vectors[:1])[0])

    def _likely(self, count: int) -> list[int]:
        """What a copy offers: the target's most likely continuation of the pending token."""
        found: list[int] = []
        while len(found) < count:
            law = self._law((*PROMPT, self.pending, *found))
            found.append(max(law, key=lambda token: law[token]))
        return found

    def _proposed(self) -> int:
        """The drafter's own most likely draft: copied, it is often followed by learned ones."""
        pages = torch.from_numpy(self.host.pages(0).astype("int64"))
        values = self.host.catalog.state.values[0]
        task = DraftTask(0, len(PROMPT), self.pending, 1, pages, torch.tensor([0.5]), values)
        return int(drafter_of(self.host).propose(task).law[0].argmax())

    def _seeds(self, first: int) -> Iterator[int]:
        """Seeds whose first token is the pending one: it is drawn at the last prompt position, from another domain."""
        low, high = self._share
        seed = first
        while True:
            if low + 1e-4 < ordinary(seed, len(PROMPT) - 1) < high - 1e-4:
                yield seed
            seed += 1

    def tally(self, kind: Kind, depth: int) -> Tally:
        """The draws of one way of drafting, made once, with seeds of their own."""
        if (kind, depth) not in self._made:
            first = 1_000_000 * list(WAYS).index((kind, depth))
            self._made[kind, depth] = self.draw(kind, depth, WAYS[kind, depth], first)
        return self._made[kind, depth]

    def draw(self, kind: Kind, depth: int, count: int, first_seed: int = 0) -> Tally:
        """`count` pairs, sixteen requests a round. After a rejection one more draft is verified."""
        tally, seeds = Tally(), self._seeds(first_seed)
        while len(tally.by_seed) < count:
            batch = [next(seeds) for _ in range(LANES)]
            said: dict[int, list[int]] = {slot: [] for slot in range(LANES)}
            records = {slot: self._restored(slot, seed) for slot, seed in enumerate(batch)}
            for turn, drafts in enumerate((depth, min(depth, 1))):
                open_slots = [slot for slot in said if len(said[slot]) < 2]
                lanes = [self._lane(kind, slot, records[slot], said[slot], drafts) for slot in open_slots]
                if lanes:
                    records.update(self.host.round(lanes, drafts + 1))
                for slot in open_slots:
                    assert not records[slot].faults
                    said[slot].extend(records[slot].tokens)
                if turn == 0:
                    for record in records.values():
                        offered = min(record[Meta.OFFERED], 2)
                        tally.cases[min(record[Meta.ACCEPTED], 2), offered] += 1
                        tally.sources[Source(record[Meta.SOURCES])] += 1
            for slot, seed in enumerate(batch):
                tally.by_seed[seed] = (said[slot][0], said[slot][1])
                tally.pairs[tally.by_seed[seed]] += 1
        return tally

    def _restored(self, slot: int, seed: int) -> Record:
        self.host.init(slot, len(PROMPT), sampling(seed), BUDGET, ())
        named(self.host, "restore", slot, ROW)
        record = named(self.host, "resume", slot, ROW)
        assert record.tokens == (self.pending,)
        return record

    def _lane(self, kind: Kind, slot: int, record: Record, said: list[int], drafts: int) -> LanePlan:
        if kind == "learned":
            return LanePlan(slot, drafts + 1)
        known = [PROMPT[-1], self.pending, *said][-2:]
        guess = self.likely[len(said) :][:drafts] if kind == "copied" else [self.proposed]
        return LanePlan(slot, drafts + 1, (*known, *guess), record[Meta.CONSUMED] - 1)


def reported_too_cool(proposal: Proposal) -> Proposal:
    """Drawn at temperature one, reported at a half."""
    squares = proposal.law.square()
    return Proposal(proposal.tokens, squares / squares.sum(-1, keepdim=True))


def drawn_from_another_law(proposal: Proposal) -> Proposal:
    """The most likely token, reported with the law that it was not drawn from."""
    return Proposal(proposal.law.argmax(-1), proposal.law)


def law_of_another_row(proposal: Proposal) -> Proposal:
    """Each draft with its neighbour's law: what retaining one row too late would give."""
    return Proposal(proposal.tokens, proposal.law.roll(1, 0))


def point_mass(proposal: Proposal) -> Proposal:
    """Each draft as if it had been copied."""
    return Proposal(proposal.tokens, torch.nn.functional.one_hot(proposal.tokens, proposal.law.shape[1]).float())


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Experiment]:
    config = PreparationConfig(
        draft_tokens=4,
        concurrency=LANES,
        context_length=128,
        prefill_buckets=(128,),
        mixed_chunk=32,
        snapshot_slots=1,
    )
    core = write_core(tmp_path_factory.mktemp("law"), small_architecture(), config, agreeing)
    with opened(core, 94) as host:
        yield Experiment(host)


@pytest.mark.parametrize(("kind", "depth"), WAYS)
def test_two_tokens_have_the_targets_joint_law(experiment: Experiment, kind: Kind, depth: int) -> None:
    """ "accept with min(1, p(token)/q(token)); on rejection, sample the normalized positive residual max(p-q,0)"."""
    tally = experiment.tally(kind, depth)
    rows = min(depth, 2)
    cases = [(accepted, rows) for accepted in range(rows + 1)]
    assert all(tally.cases[case] >= 10 for case in cases), tally.cases
    wanted = {"learned": Source.LEARNED, "copied": Source.PROMPT, "mixed": Source.LEARNED | Source.PROMPT}[kind]
    assert tally.sources[wanted] >= 100
    p = joint_p_value(tally.pairs, experiment.exact)
    assert p > REJECT_BELOW, f"p = {p}"


def test_all_ways_of_drafting_together_have_one_law(experiment: Experiment) -> None:
    """ "All chains use FlashInfer's rejection sampler" and copies a point mass: a deviation that one run would not show
    adds up if all of them have it."""
    pairs: Counter[Pair] = Counter()
    for kind, depth in WAYS:
        pairs += experiment.tally(kind, depth).pairs
    assert len(experiment.exact) == TOP_K**2
    p = joint_p_value(pairs, experiment.exact)
    assert p > REJECT_BELOW, f"p = {p}"


def test_copies_leave_every_seed_its_tokens(experiment: Experiment) -> None:
    """ "A copied token has a point-mass proposal law": it stands or falls with the row's own draw."""
    copied = experiment.tally("copied", 4).by_seed
    plain = experiment.draw("copied", 0, len(copied), min(copied)).by_seed
    assert copied == plain


@pytest.mark.parametrize("broken", [reported_too_cool, drawn_from_another_law, law_of_another_row])
def test_the_same_test_rejects_a_law_that_the_drafts_were_not_drawn_from(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch, broken: Broken
) -> None:
    """ "q must be the distribution that actually generated the proposal" (B12)."""
    drafter = drafter_of(experiment.host)
    honest = drafter.propose
    monkeypatch.setattr(drafter, "propose", lambda task: broken(honest(task)))
    p = joint_p_value(experiment.draw("learned", 2, BROKEN_DRAWS).pairs, experiment.exact)
    assert p < REJECT_BELOW, f"p = {p}"


def test_a_point_mass_is_a_law_of_any_draft(experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    """ "Copy substitutions use that law at every temperature, including when replacing a native MTP proposal": it is
    never wrong, wherever the draft came from, and only accepts less than the law that the draft was drawn from."""
    usual, drafter = experiment.tally("learned", 2), drafter_of(experiment.host)
    honest = drafter.propose
    monkeypatch.setattr(drafter, "propose", lambda task: point_mass(honest(task)))
    tally = experiment.draw("learned", 2, BROKEN_DRAWS)
    assert joint_p_value(tally.pairs, experiment.exact) > REJECT_BELOW
    assert tally.cases[2, 2] / BROKEN_DRAWS < 0.7 * usual.cases[2, 2] / len(usual.by_seed)
