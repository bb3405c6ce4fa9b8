"""Draws as tensors: `philox.py`, many at once, in 64-bit integers that wrap; captured into rounds.

Same streams, same numbers. A request's three keys depend on its seed alone, so they are made once, when it is admitted.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recipes.components.philox import Domain

_MASK32 = 0xFFFFFFFF
_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85


def signed(word: int) -> int:
    """The int64 with the bits of an unsigned 64-bit word."""
    return word - (1 << 64) if word >> 63 else word


def _shifted(words: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64 words."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def stream_keys(seeds: Tensor) -> Tensor:
    """int64 [n, 3]: the keys of the draft, acceptance and ordinary domain for seeds int64 [n] (unsigned bits)."""
    steps = [signed((domain * 0x9E3779B97F4A7C15) & ((1 << 64) - 1)) for domain in Domain]
    z = torch.stack([seeds + step for step in steps], dim=-1)
    z = (z ^ _shifted(z, 30)) * signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shifted(z, 27)) * signed(0x94D049BB133111EB)
    return z ^ _shifted(z, 31)


def uniforms_at(keys: Tensor, offsets: Tensor) -> Tensor:
    """float32 in (0, 1], the draw at each offset int64 of each key's stream; shapes broadcast."""
    offsets = offsets + torch.zeros_like(keys)
    keys = keys + torch.zeros_like(offsets)
    counter = offsets >> 2
    k0, k1 = keys & _MASK32, _shifted(keys, 32)
    c0, c1 = counter & _MASK32, _shifted(counter, 32)
    c2, c3 = torch.zeros_like(c0), torch.zeros_like(c0)
    for _ in range(10):
        p0, p1 = c0 * _M0, c2 * _M1
        c0, c1, c2, c3 = _shifted(p1, 32) ^ c1 ^ k0, p1 & _MASK32, _shifted(p0, 32) ^ c3 ^ k1, p0 & _MASK32
        k0, k1 = (k0 + _W0) & _MASK32, (k1 + _W1) & _MASK32
    word = offsets & 3
    chosen = torch.where(word < 2, torch.where(word == 0, c0, c1), torch.where(word == 2, c2, c3))
    return chosen.to(torch.float32) * 2.0**-32 + 2.0**-33
