"""S1: a toy vocabulary, exact laws written from the definition, and the chi-square that tells a biased sampler."""

from __future__ import annotations

import itertools
from collections import Counter

import torch

from recipes.components.target_law import Values

VOCABULARY = 8
DRAWS = 50_000
REJECT_BELOW = 1e-4


def values(
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition: float = 1.0,
    frequency: float = 0.0,
    presence: float = 0.0,
    min_tokens: int = 0,
    end_ids: tuple[int, ...] = (),
    bias: dict[int, float] | None = None,
) -> Values:
    """Sampling values with everything neutral but what is named."""
    biased = bias or {}
    return Values(
        temperature,
        top_k,
        top_p,
        min_p,
        repetition,
        frequency,
        presence,
        min_tokens,
        end_ids,
        torch.tensor(list(biased), dtype=torch.int64),
        torch.tensor(list(biased.values()), dtype=torch.float32),
    )


def next_logits(prefix: tuple[int, ...]) -> torch.Tensor:
    """Logits float32 [8] that depend on the whole prefix."""
    seed = 1
    for token in prefix:
        seed = (seed * 31 + token + 7) % 100_003
    return torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 1.5


def exact_filtered(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> list[float]:
    """The filtered law by its textbook definition, in plain Python, for distinct logits."""
    weights = [2.718281828459045 ** (float(x) / temperature) for x in logits]
    order = sorted(range(VOCABULARY), key=lambda i: -weights[i])
    kept = order[:top_k] if top_k else order
    total = sum(weights[i] for i in kept)
    nucleus, mass = [], 0.0
    for i in kept:
        nucleus.append(i)
        mass += weights[i] / total
        if mass >= top_p:
            break
    final = sum(weights[i] for i in nucleus)
    return [weights[i] / final if i in nucleus else 0.0 for i in range(VOCABULARY)]


def joint_p_value(observed: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    """Chi-square p of draws against exact probabilities; cells below five expected draws are pooled."""
    total = sum(observed.values())
    assert set(observed) <= {cell for cell, p in expected.items() if p > 0}, "an impossible token was emitted"
    seen, wanted, rare_seen, rare_wanted = [], [], 0.0, 0.0
    for cell, probability in expected.items():
        if probability * total < 5:
            rare_seen += observed[cell]
            rare_wanted += probability * total
        else:
            seen.append(float(observed[cell]))
            wanted.append(probability * total)
    if rare_wanted > 0:
        seen.append(rare_seen)
        wanted.append(rare_wanted)
    scale = sum(seen) / sum(wanted)
    statistic = sum((s - w * scale) ** 2 / (w * scale) for s, w in zip(seen, wanted, strict=True))
    # The upper tail of chi-square; a machine that only runs the tests of its card has no scipy.
    half = torch.tensor([(len(seen) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def exact_joint(temperature: float, top_k: int, top_p: float) -> dict[tuple[int, int], float]:
    """The exact law of the first two tokens."""
    first = exact_filtered(next_logits(()), temperature, top_k, top_p)
    joint = {}
    for a in range(VOCABULARY):
        second = exact_filtered(next_logits((a,)), temperature, top_k, top_p)
        for b in range(VOCABULARY):
            joint[(a, b)] = first[a] * second[b]
    assert abs(sum(joint.values()) - 1) < 1e-9
    assert len(joint) == len(list(itertools.product(range(VOCABULARY), repeat=2)))
    return joint
