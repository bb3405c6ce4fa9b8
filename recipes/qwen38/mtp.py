"""The drafter: one decoder layer that predicts the token after next from the target's streams and the next token.

Runs in the worker on the CPU, float32. Row i pairs the target's streams at position i with the embedding of token i +
1; its cache holds pairs of committed history only, taken from the target's own streams. What it proposes recursively
is written behind them and overwritten when history arrives (mtp-design.md, "Qwen checkpoint model and reference").
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from recipes.components.experts import Mixture
from recipes.components.hyperconnection import Mixer, centred_rms_norm
from recipes.components.model import DraftTask, Lane, Proposal
from recipes.components.row_by_row import Rowwise
from recipes.components.target_law import target_law
from recipes.qwen38.architecture import Architecture
from recipes.qwen38.blocks import AttentionBlock, AttentionRows, fed, indexer_of
from recipes.qwen38.cache import AttentionCache
from shared.errors import ContractBreach


@dataclass(frozen=True, slots=True)
class DrafterWeights:
    """The drafter's own weights; `embedding` and `head` are the target's tensors."""

    embedding: Tensor
    head: Tensor
    embedding_norm: Tensor
    hidden_norm: Tensor
    embedding_projection: Tensor
    hidden_projection: Tensor
    attention_mixer: Mixer
    attention: AttentionBlock
    experts_mixer: Mixer
    experts: Mixture
    mixer: Mixer


class MtpLayer:
    """The layer over its cache. `rows` are slots and snapshot rows together."""

    def __init__(
        self, architecture: Architecture, weights: DrafterWeights, pages: int, rows: int, deterministic: bool = False
    ) -> None:
        self._a = architecture
        self._weights = weights
        self._indexer = indexer_of(architecture)
        self._rowwise = Rowwise(deterministic)
        self.cache = AttentionCache(architecture, self._indexer, pages, rows, self._rowwise, shift=1)

    def feedback(self, streams: Tensor, tokens: Tensor) -> Tensor:
        """The layer's input [R, S * H] of streams [R, S * H] and the tokens int64 [R] that follow them."""
        a, w = self._a, self._weights
        embedded = centred_rms_norm(w.embedding[tokens], w.embedding_norm, a.rms_norm_eps) @ w.embedding_projection.t()
        # One norm over all streams together, then one projection for each.
        normed = torch.unflatten(
            centred_rms_norm(streams, w.hidden_norm, a.rms_norm_eps), -1, (a.hc_count, a.hidden_size)
        )
        return ((normed @ w.hidden_projection.t()) + embedded.unsqueeze(-2)).flatten(-2)

    @property
    def vocab_size(self) -> int:
        """Tokens of the vocabulary."""
        return self._a.vocab_size

    def forward(
        self, streams: Tensor, tokens: Tensor, lane: Lane, reuse: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Streams [count, S * H] of one lane's pairs at positions lane.first on, and what the last one attended to.

        Writes their cache rows. `reuse` is the selection of the proposal before this one, which is taken with the
        positions since instead of a new one: proposals may, committed rows never (mtp-design.md, "Available operator
        contracts").
        """
        w = self._weights
        state, normed, rows = self._inputs(streams, tokens, lane)
        attended, selection = self.cache.attend(w.attention, rows, lane, reuse)
        output = self._rowwise(w.attention.finish, rows.gates, attended)
        state = self._rowwise(w.attention_mixer.combine, state, normed, output)
        return self._rowwise(partial(fed, w.experts_mixer, w.experts), state), selection

    def absorb(self, streams: Tensor, tokens: Tensor, lane: Lane) -> None:
        """Writes the cache rows of one lane's pairs, and nothing else: what lies behind attention feeds proposals."""
        self.cache.write(self._weights.attention, self._inputs(streams, tokens, lane)[2], lane)

    def _inputs(self, streams: Tensor, tokens: Tensor, lane: Lane) -> tuple[Tensor, Tensor, AttentionRows]:
        """The layer's streams, what its first mixer needs afterwards, and attention's rows."""
        w = self._weights
        state = self._rowwise(self.feedback, streams, tokens)
        mixed, normed = self._rowwise(w.attention_mixer.mix, state)
        positions = torch.arange(lane.first, lane.first + lane.count)
        return state, normed, self._rowwise(partial(w.attention.rows, self._a, self._indexer), mixed, positions)

    def logits(self, streams: Tensor) -> Tensor:
        """Raw logits float32 [n, vocab_size]."""
        return self._rowwise(lambda rows: self._weights.mixer.mix(rows)[0] @ self._weights.head.t(), streams)


class MtpDrafter:
    """The `Drafter` of this recipe. `tails` are the target's streams at the last consumed position of each row.

    `slots` of the rows are slots, the others snapshot rows. A draft is drawn from the request's own law without its
    penalties: temperature, top-k, top-p and min-p shape it as they shape the target's, so that both agree where they
    can.
    """

    def __init__(self, layer: MtpLayer, slots: int, rows: int, width: int) -> None:
        self._layer = layer
        self._slots = slots
        self.tails = torch.zeros(rows, width)
        self.consumed = torch.zeros(rows, dtype=torch.int64)
        """Tokens of committed history; the cache holds one pair less."""

    @property
    def cache(self) -> AttentionCache:
        """Pages and rings of the layer."""
        return self._layer.cache

    @torch.inference_mode()
    def propose(self, task: DraftTask) -> Proposal:
        """Recursive drafts: the layer's own streams and the drafted token make the next pair."""
        if task.consumed != int(self.consumed[task.slot]):
            raise ContractBreach(
                f"slot {task.slot}: {int(self.consumed[task.slot])} tokens were absorbed, {task.consumed} are consumed"
            )
        streams, token = self.tails[task.slot : task.slot + 1], task.pending
        selection: Tensor | None = None
        tokens: list[int] = []
        laws: list[Tensor] = []
        for depth in range(task.limit):
            lane = Lane(task.slot, 0, 1, task.consumed - 1 + depth, task.pages)
            streams, selection = self._layer.forward(streams, torch.tensor([token]), lane, reuse=selection)
            law = target_law(self._layer.logits(streams)[0], task.values)
            token = law.draw(float(task.draws[depth]))
            tokens.append(token)
            laws.append(torch.zeros(self._layer.vocab_size).index_copy_(0, law.ids, law.probs.float()))
        empty = torch.empty(0, self._layer.vocab_size)
        return Proposal(torch.tensor(tokens, dtype=torch.int64), torch.stack(laws) if laws else empty)

    @torch.inference_mode()
    def absorb(self, lane: Lane, tokens: Tensor, vectors: Tensor, kept: int) -> None:
        """Takes the lane's first `kept` inputs with the target's streams of them into the cache."""
        if kept == 0:
            return
        before = torch.cat([self.tails[lane.slot : lane.slot + 1], vectors[: kept - 1]])
        following = tokens[:kept]
        if lane.first == 0:
            before, following = before[1:], following[1:]  # nothing stands before the first token
        if len(following):
            first = max(lane.first - 1, 0)
            self._layer.absorb(before, following, Lane(lane.slot, 0, len(following), first, lane.pages))
        self.cache.rings.keep(lane.slot, lane.first + kept - 1)
        self.tails[lane.slot] = vectors[kept - 1]
        self.consumed[lane.slot] = lane.first + kept

    def reset(self, slot: int) -> None:
        """Empties the slot's cache."""
        self.cache.rings.clear(slot)
        self.consumed[slot] = 0

    def snapshot(self, slot: int, target: int) -> None:
        """Copies tail, count and the open group's raw keys."""
        self._copy(slot, self._slots + target)

    def export(self, lane: Lane, vectors: Tensor, kept: int, target: int) -> None:
        """The prefix that ends with the lane's first `kept` rows: its last pair is the one before its last token."""
        row, consumed = self._slots + target, lane.first + kept
        self.cache.rings.copy(lane.slot, row, consumed - 1)
        self.tails[row], self.consumed[row] = vectors[kept - 1], consumed

    def restore(self, source: int, slot: int) -> None:
        """Copies snapshot row `source` into the slot."""
        self._copy(self._slots + source, slot)

    def _copy(self, source: int, row: int) -> None:
        consumed = int(self.consumed[source])
        self.cache.rings.copy(source, row, max(consumed - 1, 0))
        self.tails[row], self.consumed[row] = self.tails[source], consumed
