"""What both copy sources give: the tokens that once followed the text a request now ends with. Pure.

The rule is mtp-design.md's: exact matches of the last eight tokens before those of the last four, then the most recent
occurrence. Two rounds may be queued, so a continuation has up to twice the rows of a round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.frames import ROW_TOKENS, Source

Tokens = NDArray[np.int32]
LONG = 8
SHORT = 4
CONTINUATION = 2 * ROW_TOKENS


@dataclass(frozen=True, slots=True)
class Continuation:
    """Tokens int32 [1 .. 16] that followed an occurrence of the last `matched` known tokens."""

    tokens: Tokens
    matched: int
    source: Source


def better(prompt: Continuation | None, history: Continuation | None) -> Continuation | None:
    """The longer match; of equals the request's own context, which is nearer to what it writes."""
    if prompt is None or (history is not None and history.matched > prompt.matched):
        return history
    return prompt
