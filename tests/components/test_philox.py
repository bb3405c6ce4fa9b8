"""Draws: cuRAND's Philox stream, keyed by request, domain and position."""

from __future__ import annotations

import numpy as np
import pytest

from recipes.components import philox
from recipes.components.philox import Domain


@pytest.mark.parametrize(
    ("key", "counter", "subsequence", "expected"),
    [
        # Known answers of Philox4x32-10 from the Random123 distribution (kat_vectors).
        (0, 0, 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((1 << 64) - 1, (1 << 64) - 1, (1 << 64) - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            0x299F31D0A4093822,
            0x85A308D3243F6A88,
            0x0370734413198A2E,
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_a_block_matches_the_published_known_answers(
    key: int, counter: int, subsequence: int, expected: tuple[int, int, int, int]
) -> None:
    assert philox.block(key, counter, subsequence) == expected


def test_offsets_count_single_draws_across_blocks() -> None:
    whole = philox.uniforms(7, 0, 16)
    assert [philox.uniforms(7, offset, 1)[0] for offset in range(16)] == whole
    assert philox.uniforms(7, 3, 9) == whole[3:12]


def test_draws_lie_in_the_half_open_interval_and_fill_it_evenly() -> None:
    draws = np.array(philox.uniforms(philox.stream_key(1, Domain.ORDINARY), 0, 20_000))
    assert draws.min() > 0.0
    assert draws.max() <= 1.0
    counts, _ = np.histogram(draws, bins=20, range=(0, 1))
    assert ((counts - 1000) ** 2 / 1000).sum() < 45.3  # chi-square, 19 degrees of freedom, p = 6e-4


def test_domains_and_seeds_have_streams_of_their_own() -> None:
    keys = {philox.stream_key(seed, domain) for seed in (0, 1, (1 << 64) - 1) for domain in Domain}
    assert len(keys) == 9


def test_chain_rounds_never_share_a_draw() -> None:
    assert philox.CHAIN_DRAWS <= philox.CHAIN_STRIDE
    rounds = [set(philox.chain(5, position)) for position in range(50)]
    assert len(set.union(*rounds)) == sum(len(one) for one in rounds)
