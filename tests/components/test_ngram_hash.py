"""Row ids of n-gram embeddings: golden values of the real constants, history across rounds and text borders."""

from __future__ import annotations

import pytest
import torch

from recipes.components.ngram_hash import NgramHash
from recipes.qwen38.ngram_tables import ngram_tables
from recipes.qwen38.tiny import tiny_architecture

END = 248044
GOLDEN = {
    0: (16410909, 39682429, 55103279, 60931720),
    5: (6126415, 22022220, 43711354, 74266307),
    6: (8952483, 35421617, 48656744, 75186565),
}
"""Position to the ids of heads 0 to 3 for TOKENS (design/models.md, section 1.3)."""
TOKENS = torch.tensor([9707, 11, 1879, 0, END, 15, 42])


@pytest.fixture(scope="module")
def real() -> NgramHash:
    architecture = tiny_architecture(
        vocab_size=248320,
        ple_embed_dim=2560,
        heads_per_ngram=8,
        ngram_vocab_size_base=20_000_000,
        make_ngram_vocab_size_divisible_by=128,
        split_ngram_parts=128,
        eos_token_id=END,
    )
    tables = ngram_tables(architecture)
    assert tables.multipliers == (23703573157769, 20109073645365, 8052911324071)
    assert tables.rows == 320_001_536
    return NgramHash(torch.tensor(tables.multipliers), torch.tensor(tables.primes), torch.tensor(tables.offsets), END)


@pytest.fixture
def beginning() -> torch.Tensor:
    return torch.tensor([END, END])


def test_ids_are_the_published_ones(real: NgramHash, beginning: torch.Tensor) -> None:
    ids = real.ids(beginning, TOKENS)
    for position, wanted in GOLDEN.items():
        assert tuple(ids[position, :4].tolist()) == wanted


@pytest.mark.parametrize("cut", range(len(TOKENS) + 1))
def test_a_text_cut_anywhere_has_the_same_ids(real: NgramHash, beginning: torch.Tensor, cut: int) -> None:
    whole = real.ids(beginning, TOKENS)
    history = torch.cat([beginning, TOKENS[:cut]])[-2:]
    assert torch.equal(torch.cat([real.ids(beginning, TOKENS[:cut]), real.ids(history, TOKENS[cut:])]), whole)


def test_nothing_before_an_end_token_matters(real: NgramHash, beginning: torch.Tensor) -> None:
    assert torch.equal(real.ids(beginning, TOKENS)[5:], real.ids(beginning, TOKENS[5:]))
