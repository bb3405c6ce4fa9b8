"""The target laws of many rows at once, as tensors; captured into rounds. `target_law.py` says what the law is.

Row by row the result is that module's, filtered-out tokens having weight zero. This is the form that runs on any
device; where Triton is at hand `gpu/sampling.py` draws without ever writing a law to memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from recipes.components.device_state import DeviceState, Word
from shared.frames import InitFloat


@dataclass(frozen=True, slots=True)
class RowLaws:
    """R laws. `weights` float64 [R, V] with sum one a row; rows that are not `finite` bool [R] hold a law of no use."""

    weights: Tensor
    finite: Tensor

    @property
    def point(self) -> Tensor:
        """bool [R]: a single token, which needs no draw."""
        return (self.weights > 0).sum(1) == 1

    def draw(self, uniforms: Tensor) -> Tensor:
        """int64 [R]: inverse of the cumulative sums in id order; `uniforms` float32 [R] in (0, 1]."""
        return inverse(self.weights, uniforms)

    def probability(self, tokens: Tensor) -> Tensor:
        """float64 [R]: p of one token a row."""
        return self.weights.gather(1, tokens[:, None]).squeeze(1)


def inverse(weights: Tensor, uniforms: Tensor) -> Tensor:
    """int64 [R]: where the cumulative sum of `weights` float64 [R, V] reaches `uniforms` of the whole."""
    sums = weights.cumsum(1)
    found = torch.searchsorted(sums, uniforms.double()[:, None] * sums[:, -1:]).squeeze(1)
    ids = torch.arange(weights.shape[1], device=weights.device)
    last = torch.where(weights > 0, ids, 0).amax(1)  # rounding at the upper end may land behind the last real token
    return torch.minimum(found, last)


def adjusted_rows(logits: Tensor, state: DeviceState, rows: Tensor, drafts: Tensor, emitted: Tensor) -> Tensor:
    """Logits after penalties, bias and minimum length, float32 [R, V], for state rows `rows` int64 [R].

    `drafts` int64 [R, n]: the tokens that the conditional prefix adds, -1 for none; `emitted` int64 [R]: how many
    tokens precede the row's output.
    """
    vocab, floats = state.vocab_size, state.floats[rows]
    added = torch.zeros(len(rows), vocab + 1, dtype=torch.int32, device=logits.device)
    places = torch.where(drafts >= 0, drafts, vocab)
    added.scatter_add_(1, places, torch.ones_like(places, dtype=torch.int32))
    added = added[:, :vocab]
    counts, seen = state.counts[rows] + added, state.seen[rows] | (added > 0)
    repetition = floats[:, InitFloat.REPETITION, None]
    factor = torch.where(logits > 0, (1.0 / repetition.double()).float(), repetition)
    changed = torch.where(seen & (repetition != 1.0), logits * factor, logits)
    frequency, presence = floats[:, InitFloat.FREQUENCY, None], floats[:, InitFloat.PRESENCE, None]
    lessened = changed - (frequency * counts + presence * (counts > 0))
    changed = torch.where(state.words[rows, Word.PENALISED, None] != 0, lessened, logits)
    changed = pad(changed, (0, 1)).scatter_add(1, state.bias_ids[rows].long(), state.bias_values[rows])
    early = emitted < state.words[rows, Word.MIN_TOKENS]
    ends = state.end_ids[rows].long()
    changed.scatter_(1, torch.where((ends >= 0) & early[:, None], ends, vocab), -torch.inf)
    return changed[:, :vocab]


def row_laws(logits: Tensor, state: DeviceState, rows: Tensor) -> RowLaws:
    """The laws of adjusted logits float32 [R, V] under the values of state rows `rows` int64 [R]."""
    vocab = state.vocab_size
    floats, top_k = state.floats[rows], state.words[rows, Word.TOP_K]
    top = logits.amax(1)
    finite = (top > -torch.inf) & (top < torch.inf)  # NaN compares false
    temperature = floats[:, InitFloat.TEMPERATURE]
    usable = torch.where(finite[:, None], logits, 0.0)
    greedy = torch.nn.functional.one_hot(usable.argmax(1), vocab).double()
    divisor = torch.where(temperature == 0.0, 1.0, temperature)
    scaled = (usable - torch.where(finite, top, 0.0)[:, None]) / divisor[:, None]
    ranked = scaled.sort(1, descending=True).values
    at_k = ranked.gather(1, (top_k.clamp(1, vocab) - 1)[:, None])
    limited = ((top_k > 0) & (top_k < vocab))[:, None]
    kept = torch.where(limited, scaled >= at_k, scaled > -torch.inf)
    weights = torch.where(kept, scaled.double().exp(), 0.0)
    probs = weights / weights.sum(1, keepdim=True)
    top_p = floats[:, InitFloat.TOP_P, None].double()
    descending = probs.sort(1, descending=True).values
    reached = torch.searchsorted(descending.cumsum(1), top_p).clamp_(max=vocab - 1)
    probs = torch.where((top_p < 1.0) & (probs < descending.gather(1, reached)), 0.0, probs)
    floor = floats[:, InitFloat.MIN_P, None].double() * probs.amax(1, keepdim=True)
    probs = torch.where(probs < floor, 0.0, probs)
    probs = probs / probs.sum(1, keepdim=True)
    return RowLaws(torch.where((temperature == 0.0)[:, None], greedy, probs), finite)


def raw_logprobs_rows(logits: Tensor, tokens: Tensor, alternatives: int) -> tuple[Tensor, Tensor, Tensor]:
    """Log probability of each row's token under the raw law, float64 [R], and the best `alternatives` (ids, values)."""
    rows = logits.double()
    logarithms = rows - torch.logsumexp(rows, 1, keepdim=True)
    best = torch.topk(logarithms, min(alternatives, logits.shape[1]), sorted=True)
    return logarithms.gather(1, tokens[:, None]).squeeze(1), best.indices, best.values
