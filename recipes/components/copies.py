"""The slice of a continuation that a round may draft: what follows the pending token, if the device agrees with it.

The host wrote the continuation before it knew the outcome of the round before; the device knows. Pure integers: the CPU
program calls it, the CUDA program has the same rule in a kernel (tests/gpu).
"""

from __future__ import annotations

from collections.abc import Sequence


def continuation_slice(
    tokens: Sequence[int], anchor: int, consumed: int, previous: int, pending: int, limit: int
) -> tuple[int, ...]:
    """At most `limit` drafts after the pending token at absolute position `consumed`.

    `tokens[i]` belongs at absolute position `anchor + i`. Empty unless the continuation covers positions `consumed - 1`
    and `consumed` and agrees there with `previous` and `pending`.
    """
    at = consumed - anchor
    if limit <= 0 or at < 1 or at >= len(tokens):
        return ()
    if tokens[at - 1] != previous or tokens[at] != pending:
        return ()
    return tuple(tokens[at + 1 : at + 1 + limit])
