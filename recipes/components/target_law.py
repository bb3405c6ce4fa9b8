"""The target law of one row: raw logits and the request's sampling values to a distribution over tokens.

Order: repetition, frequency and presence penalties; logit bias; minimum length; temperature; top-k; top-p; min-p, each
filter over what the one before it left, renormalised. Ties at a filter's border are kept. Temperature 0 is a point mass
at the lowest-id argmax. The law is that of a conditional prefix: its counts include the drafts before the row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shared.errors import ProcessError


class NotFinite(ProcessError):
    """A row's logits hold NaN or nothing but minus infinity: the round of that lane is void."""

    code = "not_finite"


@dataclass(frozen=True, slots=True)
class Values:
    """A request's sampling values as the device holds them. `end_ids` are impossible before `min_tokens`."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition: float
    frequency: float
    presence: float
    min_tokens: int
    end_ids: tuple[int, ...]
    bias_ids: Tensor
    bias_values: Tensor

    @property
    def penalised(self) -> bool:
        """Whether counts matter at all."""
        return self.repetition != 1.0 or self.frequency != 0.0 or self.presence != 0.0


def neutral_values() -> Values:
    """Values that leave the model's own law as it is."""
    return Values(
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        repetition=1.0,
        frequency=0.0,
        presence=0.0,
        min_tokens=0,
        end_ids=(),
        bias_ids=torch.empty(0, dtype=torch.int64),
        bias_values=torch.empty(0),
    )


@dataclass(frozen=True, slots=True)
class Law:
    """Tokens of positive probability: `ids` int64 ascending, `probs` float64, sum one."""

    ids: Tensor
    probs: Tensor

    def probability(self, token: int) -> float:
        """p(token)."""
        index = int(torch.searchsorted(self.ids, token))
        if index < len(self.ids) and int(self.ids[index]) == token:
            return float(self.probs[index])
        return 0.0

    def draw(self, uniform: float) -> int:
        """Inverse of the cumulative sum in id order; `uniform` in (0, 1]."""
        return _inverse(self.ids, self.probs, uniform)

    def residual_draw(self, proposal: Tensor, uniform: float) -> int | None:
        """A draw of the normalised max(p - q, 0); None when that is empty. `proposal` is q, float32 [V]."""
        left = (self.probs - proposal[self.ids].double()).clamp_min_(0.0)
        if float(left.sum()) <= 0.0:
            return None
        return _inverse(self.ids, left, uniform)


def _inverse(ids: Tensor, weights: Tensor, uniform: float) -> int:
    sums = weights.cumsum(0)
    index = int(torch.searchsorted(sums, uniform * float(sums[-1])))
    index = min(index, len(ids) - 1)
    while float(weights[index]) == 0.0 and index > 0:  # rounding at the upper end may land behind the last real token
        index -= 1
    return int(ids[index])


def adjusted(logits: Tensor, values: Values, seen: Tensor | None, generated: Tensor | None, emitted: int) -> Tensor:
    """Logits after penalties, bias and minimum length, float32 [V]; the input is left alone.

    `seen` bool [V] marks tokens of prompt and prefix, `generated` int32 [V] counts emitted ones and drafts before this
    row, both only when `values.penalised`; `emitted` is how many tokens precede this row's output.
    """
    changed = logits.float()
    if values.penalised and seen is not None and generated is not None:
        changed = changed.clone()
        if values.repetition != 1.0:
            factor = torch.where(changed > 0, 1.0 / values.repetition, values.repetition)
            changed = torch.where(seen, changed * factor, changed)
        changed -= values.frequency * generated + values.presence * (generated > 0)
    if len(values.bias_ids):
        changed = changed.index_add(0, values.bias_ids, values.bias_values)
    if emitted < values.min_tokens and values.end_ids:
        changed = changed.index_fill(0, torch.tensor(values.end_ids), -torch.inf)
    return changed


def target_law(logits: Tensor, values: Values) -> Law:
    """The law of adjusted logits float32 [V]. Raises `NotFinite`."""
    top = float(logits.max())
    if not -torch.inf < top < torch.inf:  # NaN compares false
        raise NotFinite("a row's logits are not finite")
    if values.temperature == 0.0:
        return Law(torch.argmax(logits).reshape(1), torch.ones(1, dtype=torch.float64))
    scaled = (logits - top) / values.temperature
    if 0 < values.top_k < len(scaled):
        threshold = torch.topk(scaled, values.top_k, sorted=True).values[-1]
        ids = (scaled >= threshold).nonzero().squeeze(1)
    else:
        ids = (scaled > -torch.inf).nonzero().squeeze(1)
    weights = scaled[ids].double().exp()
    probs = weights / weights.sum()
    if values.top_p < 1.0:
        ids, probs = _nucleus(ids, probs, values.top_p)
    if values.min_p > 0.0:
        kept = probs >= values.min_p * probs.max()
        ids, probs = ids[kept], probs[kept]
    positive = probs > 0.0
    ids, probs = ids[positive], probs[positive]
    return Law(ids, probs / probs.sum())


def _nucleus(ids: Tensor, probs: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """The smallest most likely set that reaches `top_p`, ties at its border kept, ids still ascending.

    Tokens less likely than (1 - top_p) / n weigh less than 1 - top_p together, so the set lies among the others: only
    those are sorted.
    """
    likely = probs >= (1.0 - top_p) / len(probs)
    candidates = probs[likely]
    if not len(candidates):
        candidates = probs
    descending = candidates.sort(descending=True).values
    reached = int(torch.searchsorted(descending.cumsum(0), top_p))
    kept = probs >= descending[min(reached, len(descending) - 1)]
    return ids[kept], probs[kept]


def raw_logprobs(logits: Tensor, token: int, alternatives: int) -> tuple[float, Tensor, Tensor]:
    """Log probability of `token` under the raw model distribution, and the best `alternatives` (ids, values)."""
    row = logits.double()
    logarithms = row - torch.logsumexp(row, 0)
    best = torch.topk(logarithms, alternatives, sorted=True) if alternatives else None
    ids = best.indices if best is not None else torch.empty(0, dtype=torch.int64)
    values = best.values if best is not None else torch.empty(0, dtype=torch.float64)
    return float(logarithms[token]), ids, values
