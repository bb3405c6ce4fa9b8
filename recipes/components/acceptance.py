"""Acceptance of one lane's drafts: which prefix stands, and which token follows it.

Learned drafts go through chain rejection sampling with the law they were drawn from. A copied draft survives if it
equals the row's ordinary, position-keyed draw: for a point mass that is the same law, and it makes copying invisible
(architecture.md, section 3). Draw indices of a chain round of K drafts are FlashInfer's: test i at i, bonus at K,
correction at K + 1. Always lossless.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from recipes.components.philox import chain, ordinary
from recipes.components.target_law import Law
from shared.errors import ContractBreach


@dataclass(frozen=True, slots=True)
class Drafts:
    """One lane's drafts in order. `law` float32 [k, V] holds q of row i where `learned[i]`; else None."""

    tokens: tuple[int, ...] = ()
    learned: tuple[bool, ...] = ()
    law: Tensor | None = None

    @property
    def chained(self) -> bool:
        """Whether this is a chain round: its bonus then comes from the chain's stream."""
        return any(self.learned)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a lane emits: `accepted` drafts, then one token of the target unless the last draft ended the request."""

    tokens: tuple[int, ...]
    accepted: int
    copied: int
    """Accepted drafts that were copied."""
    ended: bool
    """The last token is an end token."""


def accept(
    drafts: Drafts, law_of_row: Callable[[int], Law], seed: int, first_position: int, end_ids: frozenset[int], room: int
) -> Verdict:
    """Walks the rows in order and stops at the first rejection, end token, or when `room` tokens are out.

    `law_of_row(i)` is the target law of row i given that drafts before it stand; it is asked for each row once, in
    order, and not beyond the stop. `first_position` is the absolute position of row 0.
    """
    count = len(drafts.tokens)
    draws = chain(seed, first_position) if drafts.chained else []
    emitted: list[int] = []
    accepted = copied = 0
    for row in range(count + 1):
        law = law_of_row(row)
        if row < count and drafts.learned[row]:
            token = _chain_row(drafts, law, row, draws)
        elif row == count and drafts.chained:
            token = law.draw(draws[count])
        else:
            token = law.draw(ordinary(seed, first_position + row))
        emitted.append(token)
        survived = row < count and token == drafts.tokens[row]
        if survived:
            accepted += 1
            copied += not drafts.learned[row]
        if not survived or token in end_ids or len(emitted) == room:
            break
    return Verdict(tuple(emitted), accepted, copied, emitted[-1] in end_ids)


def _chain_row(drafts: Drafts, law: Law, row: int, draws: list[float]) -> int:
    """The draft itself if its test passes, else a draw of the normalised residual.

    A residual draw can never equal the draft: a failed test means p(d) <= u * q(d) <= q(d), which leaves d no mass.
    """
    token = drafts.tokens[row]
    if drafts.law is None:
        raise ContractBreach("a learned draft came without the law that it was drawn from")
    proposal = drafts.law[row]
    if len(law.ids) == 1:  # a point mass decides without a draw, also at u == 1
        return int(law.ids[0])
    if draws[row] * float(proposal[token]) < law.probability(token):
        return token
    corrected = law.residual_draw(proposal, draws[len(drafts.tokens) + 1])
    return token if corrected is None else corrected
