"""How far logits lie from a reference's, row by row: the figures that mtp-design.md asks of teacher-forced runs.

Used by benches and tests on the CPU and on a card; no server imports it. Whole-model figures are a diagnostic: what is
accepted is decided by components on identical operands.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

TOP = 10


@dataclass(frozen=True, slots=True)
class Divergence:
    """Figures of R rows, each float32 [R] on the CPU."""

    relative_l2: Tensor
    """||actual - reference|| / ||reference||."""
    top_overlap: Tensor
    """The share of the reference's ten most likely tokens that are among the actual ten."""
    kl: Tensor
    """KL(reference || actual) of the softmaxes in float32, in nats."""
    same_first: Tensor
    """1 where both have the same most likely token, the lowest id of several."""
    largest: Tensor
    """The largest absolute difference of a logit."""

    def joined(self, other: Divergence) -> Divergence:
        """The figures of both sets of rows."""
        pairs = ((getattr(self, name), getattr(other, name)) for name in self.__dataclass_fields__)
        return Divergence(*(torch.cat(pair) for pair in pairs))

    def summary(self) -> Summary:
        """Means and worst rows."""
        return Summary(
            rows=len(self.kl),
            relative_l2=float(self.relative_l2.mean()),
            worst_relative_l2=float(self.relative_l2.max()),
            top_overlap=float(self.top_overlap.mean()),
            kl=float(self.kl.mean()),
            worst_kl=float(self.kl.max()),
            same_first=float(self.same_first.mean()),
            largest=float(self.largest.max()),
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """One line of a table: means over `rows` rows, and the worst row where that says more."""

    rows: int
    relative_l2: float
    worst_relative_l2: float
    top_overlap: float
    kl: float
    worst_kl: float
    same_first: float
    largest: float


def divergence(reference: Tensor, actual: Tensor) -> Divergence:
    """Compares logits [R, V] over the whole vocabulary, both in float32. Raises `ValueError` on unequal shapes."""
    if reference.shape != actual.shape:
        raise ValueError(f"reference {list(reference.shape)} and actual {list(actual.shape)} differ in shape")
    reference, actual = reference.float(), actual.float()
    difference = actual - reference
    wanted, found = torch.log_softmax(reference, -1), torch.log_softmax(actual, -1)
    kl = (wanted.exp() * (wanted - found)).sum(-1)
    top = min(TOP, reference.shape[-1])
    members = torch.zeros(reference.shape, dtype=torch.bool, device=reference.device)
    members.scatter_(-1, _most_likely(reference, top), True)
    overlap = members.gather(-1, _most_likely(actual, top)).float().mean(-1)
    figures = (
        relative_l2(reference, actual),
        overlap,
        kl,
        (_most_likely(reference, 1) == _most_likely(actual, 1)).squeeze(-1).float(),
        difference.abs().amax(-1),
    )
    return Divergence(*(figure.cpu() for figure in figures))


def relative_l2(reference: Tensor, actual: Tensor) -> Tensor:
    """||actual - reference|| / ||reference|| over the last dimension, in float32; a zero reference divides by one."""
    norm = torch.linalg.vector_norm(reference.float(), dim=-1)
    error: Tensor = torch.linalg.vector_norm(actual.float() - reference.float(), dim=-1)
    return error / torch.where(norm > 0, norm, torch.ones_like(norm))


def _most_likely(logits: Tensor, count: int) -> Tensor:
    """Ids of the `count` largest, equal ones by id."""
    return torch.sort(logits, dim=-1, descending=True, stable=True).indices[..., :count]
