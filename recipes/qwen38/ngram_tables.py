"""Sizes and constants of the n-gram tables: primes of the hash heads, their offsets, multipliers. Pure arithmetic.

They follow from the config alone; a checkpoint stores them too, and both must agree (design/models.md, section 1.3).
"""

from __future__ import annotations

from dataclasses import dataclass

from recipes.qwen38.architecture import Architecture

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_LAYER_STRIDE = 10007


def _splitmix64(state: int) -> int:
    """The output of the generator in `state`."""
    value = (state + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _is_prime(number: int) -> bool:
    if number < 2 or number % 2 == 0:
        return number == 2
    divisor = 3
    while divisor * divisor <= number:
        if number % divisor == 0:
            return False
        divisor += 2
    return True


@dataclass(frozen=True, slots=True)
class NgramTables:
    """`primes` and `offsets` of every hash head, orders ascending; `rows` of the table with its padding."""

    multipliers: tuple[int, ...]
    primes: tuple[int, ...]
    offsets: tuple[int, ...]
    rows: int


def ngram_tables(architecture: Architecture, ple_index: int = 0) -> NgramTables:
    """The tables of the `ple_index`-th layer with n-gram embeddings."""
    half = ((1 << 63) - 1) // architecture.vocab_size // 2
    multipliers = tuple(
        2 * (_splitmix64(architecture.seed + _LAYER_STRIDE * ple_index + _GAMMA * (i + 1)) % half) + 1
        for i in range(architecture.ngram_size)
    )
    primes: list[int] = []
    candidate = architecture.ngram_vocab_size_base - 1
    while len(primes) < architecture.ngram_heads:
        candidate += 1
        if _is_prime(candidate):
            primes.append(candidate)
    offsets = tuple(sum(primes[:head]) for head in range(len(primes)))
    unit = architecture.make_ngram_vocab_size_divisible_by
    return NgramTables(multipliers, tuple(primes), offsets, -(-sum(primes) // unit) * unit)
