"""Our operators against b12x's reference modules, on identical operands at the real widths (mtp-design.md, "Numerical
acceptance requires component comparisons on identical operands").

Figures are the worst row's relative L2. Where a reference keeps float32, ours must agree to FLOAT, some units of
float32 over sums of thousands. Where it rounds to BF16 inside, the difference is that rounding: to within 2^-8 each
time, and a few of them stay below BF16, twice that. What was measured stands beside each comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from recipes.components.diagnostics import relative_l2
from recipes.components.hyperconnection import Mixer
from recipes.components.ngram_hash import NgramHash
from recipes.components.short_convolution import advanced, convolve, history_length
from recipes.qwen38.blocks import NgramBlock, activated
from recipes.qwen38.mtp import DrafterWeights, MtpLayer
from recipes.qwen38.ngram_tables import ngram_tables
from recipes.qwen38.state import NGRAM_DILATION
from tests.recipes.qwen38.b12x_references import reference
from tests.recipes.qwen38.test_checkpoint import full_architecture

FLOAT, BF16 = 3e-6, 2.0**-7
ABSENT = cast(Any, None)


def drawn(seed: int, exact: bool = False) -> Callable[..., Tensor]:
    """Normal numbers from one generator; `exact` ones are BF16 values."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        found = torch.randn(shape, generator=generator) * scale
        return found.bfloat16().float() if exact else found

    return normal


def apart(reference: Tensor, ours: Tensor) -> float:
    """The worst row's relative L2."""
    return float(relative_l2(reference.flatten(1), ours.flatten(1)).max())


def test_feedback() -> None:
    """b12x rounds both norms, both projections and the sum to BF16: measured 3.0e-3."""
    a, normal, rows = full_architecture(), drawn(1, exact=True), 5
    weights = DrafterWeights(
        embedding=normal(64, a.hidden_size),
        head=ABSENT,
        embedding_norm=normal(a.hidden_size, scale=0.1),
        hidden_norm=normal(a.streams_width, scale=0.1),
        embedding_projection=normal(a.hidden_size, a.hidden_size, scale=0.02),
        hidden_projection=normal(a.hidden_size, a.hidden_size, scale=0.02),
        attention_mixer=ABSENT,
        attention=ABSENT,
        experts_mixer=ABSENT,
        experts=ABSENT,
        mixer=ABSENT,
    )
    # Streams of unequal size: one variance over all of them is not one for each.
    streams = normal(rows, a.hc_count, a.hidden_size) * torch.tensor([1.0, 2.0, 4.0, 8.0])[:, None]
    tokens = torch.arange(3, 3 + rows)
    ours = MtpLayer(a, weights, pages=1, rows=1).feedback(streams.flatten(1), tokens)
    brain = torch.Tensor.bfloat16
    theirs = reference("sequence.mtp_feedback").feedback(
        brain(weights.embedding[tokens]),
        brain(streams),
        brain(weights.embedding_norm),
        brain(weights.hidden_norm),
        brain(weights.embedding_projection),
        brain(weights.hidden_projection),
    )
    assert apart(theirs.float(), ours.view_as(theirs)) < BF16


def test_hyperconnection() -> None:
    """Norm of each stream, gated mean and injection in float32: measured 0, since torch does the same."""
    a, normal, rows = full_architecture(), drawn(2), 7
    width, theirs = a.streams_width, reference("norm.hyperconnection")
    mixer = Mixer(
        norm=normal(width, scale=0.1),
        down=normal(a.hc_lowrank, width, scale=width**-0.5),
        up=normal(width, a.hc_lowrank, scale=a.hc_lowrank**-0.5),
        inject=normal(a.hc_count, width, scale=width**-0.5),
        streams=a.hc_count,
        epsilon=a.rms_norm_eps,
    )
    state, output = normal(rows, width, scale=3.0), normal(rows, a.hidden_size)
    normed = theirs.grouped_rmsnorm(state, mixer.norm, streams=a.hc_count, eps=a.rms_norm_eps)
    gates = theirs.scaled_silu(normed @ mixer.down.t(), streams=a.hc_count) @ mixer.up.t()
    mixed, own_normed = mixer.mix(state)
    assert apart(normed, own_normed) < FLOAT
    assert apart(theirs.gate_mean(normed, gates, streams=a.hc_count), mixed) < FLOAT
    assert mixer.inject is not None
    wanted = theirs.combine(state, output, normed @ mixer.inject.t(), streams=a.hc_count)
    assert apart(wanted, mixer.combine(state, own_normed, output)) < FLOAT


@pytest.fixture(scope="module")
def ngram_case() -> tuple[NgramBlock, Tensor, Tensor, Tensor, Tensor]:
    """The n-gram layer at the real stream width, 20 rows of streams and embeddings, and what b12x makes of them."""
    a, normal, rows, embedded_size = full_architecture(), drawn(3), 20, 64
    channels, kernel = a.streams_width, a.ple_conv_kernel_size
    block = NgramBlock(
        key=normal(channels, embedded_size, scale=0.2),
        value=normal(a.hidden_size, embedded_size, scale=0.2),
        key_norm=normal(channels, scale=0.1),
        query_norm=normal(channels, scale=0.1),
        convolution_norm=normal(channels, scale=0.1),
        convolution=normal(channels, kernel, scale=0.5),
    )
    streams, embedded = normal(rows, channels), normal(rows, embedded_size)
    wanted, history = reference("sequence.ple").ple_projected_sequence_reference(
        streams.view(rows, a.hc_count, -1),
        (embedded @ block.key.t()).view(rows, a.hc_count, -1),
        embedded @ block.value.t(),
        k_norm_weight=block.key_norm,
        q_norm_weight=block.query_norm,
        u_norm_weight=block.convolution_norm,
        conv_weight=block.convolution,
        eps=a.rms_norm_eps,
        dilation=NGRAM_DILATION,
    )
    return block, streams, embedded, wanted.flatten(1), history.t()


@pytest.mark.parametrize("kept", range(9))
def test_ngram_layer_goes_on_after_every_accepted_count(
    ngram_case: tuple[NgramBlock, Tensor, Tensor, Tensor, Tensor], kept: int
) -> None:
    """Three rows, a round of eight of which `kept` stand, and the rest: measured 6e-8.

    The gate's square root has a kink at zero; no score comes near it here.
    """
    a = full_architecture()
    block, streams, embedded, wanted, last = ngram_case
    history = torch.zeros(history_length(a.ple_conv_kernel_size, NGRAM_DILATION), a.streams_width)
    values, inputs = block.gated(a, streams, embedded)
    found = []
    rejected = inputs[3:11].clone()
    rejected[kept:] = torch.nan
    for candidates, count in ((inputs[:3], 3), (rejected, kept), (inputs[3 + kept :], 17 - kept)):
        found.append(convolve(history, candidates, block.convolution, NGRAM_DILATION)[:count])
        history = advanced(history, candidates, count)
    assert apart(wanted, values + activated(torch.cat(found))) < FLOAT
    assert apart(last, history) < FLOAT


def test_ngram_ids_are_the_same_for_packed_requests_behind_committed_history() -> None:
    a, theirs = full_architecture(), reference("sequence.ple_hash")
    tables, ends = ngram_tables(a), a.eos_token_id
    heads = a.heads_per_ngram
    sizes, offsets = theirs.ple_table_geometry(
        base_size=a.ngram_vocab_size_base, dense_layer_ordinal=0, total_heads=2 * heads
    )
    multipliers = theirs.ple_multipliers(vocab_size=a.vocab_size, max_order=3, dense_layer_ordinal=0, seed=a.seed)
    assert (tables.primes, tables.offsets, tables.multipliers) == tuple(
        tuple(values.tolist()) for values in (sizes, offsets, multipliers)
    )
    ours = NgramHash(multipliers, sizes, offsets, ends)
    generator = torch.Generator().manual_seed(4)
    histories = torch.tensor([[ends, ends], [17, 248000], [ends, 5], [9, ends]])
    tokens = torch.randint(0, a.vocab_size, (40,), generator=generator)
    tokens[[2, 11, 12, 30]] = ends
    starts = torch.tensor([0, 8, 9, 24, 40])
    wanted = theirs.ple_hash_packed_reference(
        tokens,
        starts,
        histories,
        eos_token_id=ends,
        multipliers=multipliers,
        prime_sizes=sizes,
        table_offsets=offsets,
        heads_per_order=heads,
    )
    parts = zip(histories, starts[:-1].tolist(), starts[1:].tolist(), strict=True)
    assert torch.equal(torch.cat([ours.ids(history, tokens[first:last]) for history, first, last in parts]), wanted)
