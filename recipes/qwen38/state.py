"""Recurrent state of the target, a row for each slot and each snapshot, and the candidates of the round that runs.

Runs in the worker on the CPU. `forward` leaves committed rows alone and keeps what a commit needs: the convolution's
and n-gram layer's inputs, the delta rule's records, the tokens. A prompt chunk is committed as a whole, so that its
delta state is kept instead of its records.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recipes.components.gated_delta import Corrections
from recipes.components.gdn_recovery import recover
from recipes.components.short_convolution import advanced, history_length
from recipes.qwen38.architecture import Architecture
from shared.errors import ContractBreach


@dataclass(frozen=True, slots=True)
class DeltaCandidate:
    """One delta layer's part of a lane: convolution inputs [count, channels], and the records or the whole's state."""

    inputs: Tensor
    outcome: Corrections | Tensor


@dataclass(frozen=True, slots=True)
class Candidate:
    """A lane's rows before commit. `deltas` by layer; `ngram_inputs` [count, S * H] of the n-gram layer."""

    first: int
    tokens: Tensor
    deltas: dict[int, DeltaCandidate]
    ngram_inputs: Tensor


class RecurrentRows:
    """`rows` rows of committed state. Tokens before the text's beginning are the end token, as the hash wants it."""

    def __init__(self, a: Architecture, rows: int) -> None:
        self._boundary = a.eos_token_id
        self.layers = tuple(layer for layer in range(a.num_hidden_layers) if not a.is_sparse(layer))
        shape = (a.linear_num_value_heads, a.linear_key_head_dim, a.linear_value_head_dim)
        self.matrices = {layer: torch.zeros(rows, *shape) for layer in self.layers}
        history = history_length(a.linear_conv_kernel_dim)
        self.convolutions = {layer: torch.zeros(rows, history, a.convolution_width) for layer in self.layers}
        self.ngram_history = torch.zeros(rows, history_length(a.ple_conv_kernel_size, NGRAM_DILATION), a.streams_width)
        self.tokens = torch.full((rows, a.ngram_size - 1), a.eos_token_id, dtype=torch.int64)
        self.consumed = torch.zeros(rows, dtype=torch.int64)

    def store(self, row: int, source: int, candidate: Candidate, kept: int) -> None:
        """Row `row` becomes the state after the first `kept` of `candidate`'s rows behind row `source`."""
        if not 0 <= kept <= len(candidate.tokens):
            raise ContractBreach(f"cannot keep {kept} of {len(candidate.tokens)} rows")
        for layer, delta in candidate.deltas.items():
            self.matrices[layer][row] = self._matrix(layer, source, delta, kept)
            self.convolutions[layer][row] = advanced(self.convolutions[layer][source], delta.inputs, kept)
        self.ngram_history[row] = advanced(self.ngram_history[source], candidate.ngram_inputs, kept)
        self.tokens[row] = advanced(self.tokens[source], candidate.tokens, kept)
        self.consumed[row] = candidate.first + kept

    def _matrix(self, layer: int, source: int, delta: DeltaCandidate, kept: int) -> Tensor:
        committed = self.matrices[layer][source]
        if kept == 0:
            return committed
        if isinstance(delta.outcome, Corrections):
            return recover(committed, delta.outcome, kept)
        if kept != len(delta.inputs):
            raise ContractBreach(f"a prompt chunk of {len(delta.inputs)} rows is kept as a whole, not {kept} of it")
        return delta.outcome

    def copy(self, source: int, row: int) -> None:
        """Row `row` becomes row `source`."""
        for layer in self.layers:
            self.matrices[layer][row] = self.matrices[layer][source]
            self.convolutions[layer][row] = self.convolutions[layer][source]
        self.ngram_history[row] = self.ngram_history[source]
        self.tokens[row] = self.tokens[source]
        self.consumed[row] = self.consumed[source]

    def clear(self, row: int) -> None:
        """The state of an empty text."""
        for layer in self.layers:
            self.matrices[layer][row] = 0.0
            self.convolutions[layer][row] = 0.0
        self.ngram_history[row] = 0.0
        self.tokens[row] = self._boundary
        self.consumed[row] = 0


NGRAM_DILATION = 3
"""Tokens between the taps of the n-gram layer's convolution."""
