"""Counter-based draws: Philox4x32-10 as cuRAND lays it out. A draw depends on request, domain and position only.

A key is derived from (request seed, domain). Offsets count single 32-bit draws: word `offset % 4` of block
`offset // 4`, subsequence zero (kernels.md, section 1). Ordinary draws sit at the row's own absolute position; a chain
round owns twelve offsets from twelve times the position of its first row, of which it uses at most nine.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_MASK32, _MASK64 = (1 << 32) - 1, (1 << 64) - 1
CHAIN_STRIDE = 12
"""Offsets reserved by one chain round: three blocks of four."""
CHAIN_DRAWS = 9
_SCALE, _HALF = np.float32(2.0**-32), np.float32(2.0**-33)


class Domain(IntEnum):
    """What a draw is for. Domains never share a stream."""

    DRAFT = 1
    ACCEPTANCE = 2
    """Acceptance tests, correction and bonus of a chain round."""
    ORDINARY = 3


def stream_key(seed: int, domain: Domain) -> int:
    """64-bit Philox key of a request's stream: SplitMix64's finaliser over seed and domain."""
    z = (seed + domain * 0x9E3779B97F4A7C15) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return z ^ (z >> 31)


def block(key: int, counter: int, subsequence: int = 0) -> tuple[int, int, int, int]:
    """The four 32-bit words of one Philox4x32-10 block; `counter`, `subsequence`: 64-bit halves of the counter."""
    k0, k1 = key & _MASK32, key >> 32
    c0, c1 = counter & _MASK32, (counter >> 32) & _MASK32
    c2, c3 = subsequence & _MASK32, (subsequence >> 32) & _MASK32
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _MASK32, (p0 >> 32) ^ c3 ^ k1, p0 & _MASK32
        k0, k1 = (k0 + _W0) & _MASK32, (k1 + _W1) & _MASK32
    return c0, c1, c2, c3


def uniforms(key: int, offset: int, count: int) -> list[float]:
    """`count` consecutive draws from `offset`, each a float32 in (0, 1], as `curand_uniform` maps them."""
    words: list[int] = []
    for counter in range(offset // 4, (offset + count + 3) // 4):
        words.extend(block(key, counter))
    first = offset % 4
    chosen = np.array(words[first : first + count], dtype=np.uint32)
    return [float(value) for value in chosen.astype(np.float32) * _SCALE + _HALF]


def ordinary(seed: int, position: int) -> float:
    """The draw of the row at absolute `position`."""
    return uniforms(stream_key(seed, Domain.ORDINARY), position, 1)[0]


def chain(seed: int, first_position: int) -> list[float]:
    """The nine draws of a chain round whose first row is at `first_position`."""
    return uniforms(stream_key(seed, Domain.ACCEPTANCE), first_position * CHAIN_STRIDE, CHAIN_DRAWS)


def proposals(seed: int, first_position: int, count: int) -> list[float]:
    """The draws of `count` drafts of a round whose first row is at `first_position`."""
    return uniforms(stream_key(seed, Domain.DRAFT), first_position * CHAIN_STRIDE, count)
