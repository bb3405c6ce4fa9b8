"""Acceptance is lossless: the joint law of two emitted tokens is the target's, whatever drafts them (B12, S1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch

from recipes.components.acceptance import Drafts, Verdict, accept
from recipes.components.philox import proposals
from recipes.components.target_law import Law, target_law
from tests.components import laws

TARGET = laws.values(temperature=1.0, top_k=4, top_p=0.9)
Maker = Callable[[int], Drafts]


def law_after(prefix: tuple[int, ...], cache: dict[tuple[int, ...], Law]) -> Law:
    if prefix not in cache:
        cache[prefix] = target_law(laws.next_logits(prefix), TARGET)
    return cache[prefix]


def dense(law: Law) -> torch.Tensor:
    full = torch.zeros(laws.VOCABULARY)
    full[law.ids] = law.probs.float()
    return full


def soft_law(prefix: tuple[int, ...], temperature: float) -> torch.Tensor:
    return torch.softmax(laws.next_logits(prefix).flip(0) * 0.5 + laws.next_logits(prefix) / temperature, 0)


def learned(seed: int, depth: int, law_of: Callable[[tuple[int, ...]], torch.Tensor]) -> Drafts:
    """Drafts truly drawn from `law_of` each prefix with the draft domain's uniforms."""
    tokens: list[int] = []
    rows = []
    for uniform in proposals(seed, 10, depth):
        q = law_of(tuple(tokens))
        rows.append(q)
        tokens.append(int(torch.searchsorted(q.double().cumsum(0), uniform * float(q.double().sum()))))
    return Drafts(tuple(tokens), (True,) * depth, torch.stack(rows))


def copied(tokens: tuple[int, ...]) -> Drafts:
    return Drafts(tokens, (False,) * len(tokens))


def mixed(seed: int, depth: int) -> Drafts:
    """A copied first draft, learned ones behind it."""

    def law_of(prefix: tuple[int, ...]) -> torch.Tensor:
        return soft_law((COPY, *prefix), 1.0)

    tail = learned(seed, depth, law_of)
    assert tail.law is not None
    blank = torch.zeros(1, laws.VOCABULARY)
    return Drafts((COPY, *tail.tokens), (False, *tail.learned), torch.cat([blank, tail.law]))


CACHE: dict[tuple[int, ...], Law] = {}
COPY = int(laws.next_logits(()).argsort(descending=True)[1])


def argmax_chain(depth: int) -> Drafts:
    """Learned point masses at the target's most likely continuation."""
    tokens: tuple[int, ...] = ()
    for _ in range(depth):
        law = law_after(tokens, CACHE)
        tokens = (*tokens, int(law.ids[law.probs.argmax()]))
    return Drafts(tokens, (True,) * depth, torch.nn.functional.one_hot(torch.tensor(tokens), laws.VOCABULARY).float())


def impossible(depth: int) -> Drafts:
    """Learned point masses at a token that the target cannot emit: p(draft) = 0."""
    out = next(t for t in range(laws.VOCABULARY) if law_after((), CACHE).probability(t) == 0.0)
    tokens = (out,) * depth
    return Drafts(tokens, (True,) * depth, torch.nn.functional.one_hot(torch.tensor(tokens), laws.VOCABULARY).float())


def makers(depth: int) -> dict[str, Maker]:
    point, never = argmax_chain(depth), impossible(depth)
    return {
        "learned": lambda seed: learned(seed, depth, lambda p: soft_law(p, 1.0)),
        "learned_sharp": lambda seed: learned(seed, depth, lambda p: soft_law(p, 0.5)),
        "learned_equal": lambda seed: learned(seed, depth, lambda p: dense(law_after(p, CACHE))),
        "learned_argmax": lambda seed: point,
        "learned_impossible": lambda seed: never,
        "copied": lambda seed: copied((COPY, *[1, 2, 3][: depth - 1])),
        "mixed": lambda seed: mixed(seed, depth),
    }


def two_tokens(maker: Maker, seed: int, judge: Callable[..., Verdict] = accept) -> tuple[int, ...]:
    """Rounds until two tokens are out, each with new drafts at its own position."""
    emitted: tuple[int, ...] = ()
    while len(emitted) < 2:
        drafts = maker(seed) if not emitted else Drafts()
        start = emitted
        verdict = judge(
            drafts,
            lambda row, start=start, drafts=drafts: law_after((*start, *drafts.tokens[:row]), CACHE),
            seed,
            10 + len(emitted),
            frozenset(),
            8,
        )
        emitted = (*emitted, *verdict.tokens)
    return emitted[:2]


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("kind", sorted(makers(1)))
def test_the_joint_law_of_two_tokens_is_the_targets(kind: str, depth: int) -> None:
    maker = makers(depth)[kind]
    whole = depth == 2 and kind in ("learned", "copied", "mixed")
    draws = laws.DRAWS if whole else 5_000
    observed = Counter(two_tokens(maker, seed) for seed in range(draws))
    p = laws.joint_p_value(observed, {k: v for k, v in laws.exact_joint(1.0, 4, 0.9).items() if v > 0})
    assert p > laws.REJECT_BELOW, f"{kind}, depth {depth}: p = {p}"


def biased(drafts: Drafts, law_of_row: Callable[[int], Law], *rest: object) -> Verdict:
    """A sampler with the classic fault: a rejected draft is replaced by a draw of p instead of the residual."""

    class Forgetful(Law):
        def residual_draw(self, proposal: torch.Tensor, uniform: float) -> int | None:
            return self.draw(uniform)

    return accept(drafts, lambda row: Forgetful(law_of_row(row).ids, law_of_row(row).probs), *rest)  # type: ignore[arg-type]


def test_the_same_test_rejects_a_biased_sampler() -> None:
    maker = makers(2)["learned"]
    observed = Counter(two_tokens(maker, seed, biased) for seed in range(20_000))
    p = laws.joint_p_value(observed, {k: v for k, v in laws.exact_joint(1.0, 4, 0.9).items() if v > 0})
    assert p < laws.REJECT_BELOW


def fixed(drafts: Drafts) -> Maker:
    return lambda seed: drafts


def test_copies_are_invisible() -> None:
    """With or without copies, right or wrong ones, the same seed emits the same tokens."""
    for seed in range(300):
        plain = two_tokens(fixed(Drafts()), seed)
        for guess in ((plain[0], plain[1]), (plain[0],), ((plain[0] + 1) % 8, 3)):
            assert two_tokens(fixed(copied(guess)), seed) == plain


def test_greedy_takes_the_argmax_whatever_the_draw() -> None:
    greedy = laws.values(temperature=0.0)
    logits = torch.tensor([0.0, 3.0, 3.0, 1.0, 0, 0, 0, 0])
    drafts = Drafts((1,), (True,), torch.nn.functional.one_hot(torch.tensor([1]), 8).float())
    for seed in range(200):
        verdict = accept(drafts, lambda row: target_law(logits, greedy), seed, 3, frozenset(), 8)
        assert verdict.tokens == (1, 1), "ties go to the lowest id"
        assert verdict.accepted == 1


@pytest.mark.parametrize("stop_at", range(8))
@pytest.mark.parametrize("room", range(1, 9))
def test_an_end_token_or_the_budget_clips_whichever_comes_first(stop_at: int, room: int) -> None:
    """B01, B03: nothing is emitted after an end token or beyond the budget, at every row."""
    greedy, end = laws.values(temperature=0.0), 7
    script = [1, 2, 3, 4, 5, 6, 1, 2]
    script[stop_at] = end
    rows = [torch.nn.functional.one_hot(torch.tensor(t), 8).float() for t in script]
    drafts = copied(tuple(script[:7])[: max(room - 1, 0)])
    verdict = accept(drafts, lambda row: target_law(rows[row], greedy), 1, 0, frozenset({end}), room)
    assert list(verdict.tokens) == script[: min(stop_at + 1, room)]
    assert verdict.ended is (stop_at < room)
