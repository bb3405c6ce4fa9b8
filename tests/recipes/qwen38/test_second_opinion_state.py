"""Operators with a state against b12x's references: recurrence and its checkpoints, selector rings, sparse attention.

Real head geometry, identical operands; tolerances as in test_second_opinion.py. b12x keeps a state a row (checkpoint
columns) where we keep one state and records, and an anchor where we keep tags: what comes out must not differ.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from recipes.components.gated_delta import Corrections, DeltaRows, delta_rows
from recipes.components.gdn_recovery import recover
from recipes.components.indexed_attention import rotate_half
from recipes.components.model import Lane
from recipes.components.row_by_row import Rowwise
from recipes.qwen38.blocks import AttentionBlock, AttentionRows, DeltaBlock, indexer_of
from recipes.qwen38.cache import AttentionCache
from shared.manifest import PAGE_TOKENS
from tests.recipes.qwen38.b12x_references import reference
from tests.recipes.qwen38.test_checkpoint import full_architecture
from tests.recipes.qwen38.test_second_opinion import ABSENT, BF16, FLOAT, apart, drawn

ROUND = 8
ARCHITECTURE = full_architecture()
KEYS, VALUES, SIZE = 16, 48, 128
"""models.md, section 1.2: 16 key heads and 48 value heads of 128."""


class Recurrence:
    """Two rounds of eight rows at the real geometry: ours up to a prefix of the first, b12x's with its columns."""

    def __init__(self) -> None:
        normal, inputs, outputs = drawn(11), 96, 512
        self.block = DeltaBlock(
            qkv=ABSENT,
            gate=normal(VALUES * SIZE, inputs, scale=0.1),
            beta=normal(VALUES, inputs, scale=0.1),
            decay=normal(VALUES, inputs, scale=0.1),
            output=normal(outputs, VALUES * SIZE, scale=0.02),
            convolution=ABSENT,
            norm=1.0 + normal(SIZE, scale=0.1),
            decay_log=normal(VALUES, scale=0.3),
            decay_bias=normal(VALUES, scale=0.3),
        )
        self.x = normal(2 * ROUND, inputs)
        self.mixed = normal(2 * ROUND, (2 * KEYS + VALUES) * SIZE)
        self.state = normal(VALUES, SIZE, SIZE, scale=0.3)

    def rows(self, part: slice) -> DeltaRows:
        """Our inputs; betas rounded to BF16, as b12x does it."""
        rows = self.block.rows(ARCHITECTURE, self.x[part], self.mixed[part])
        return replace(rows, betas=rows.betas.bfloat16().float())

    def round(self, part: slice, states: Tensor, accepted: int) -> Tensor:
        """b12x's round: reads column accepted - 1 of `states` [8, HV, V, K], leaves a state a row; [8, HV, V] BF16."""
        x = self.x[part]
        found: Tensor = reference("sequence.gdn_decode").decode(
            self.mixed[part],
            x @ self.block.decay.t(),
            x @ self.block.beta.t(),
            (x @ self.block.gate.t()).view(-1, VALUES, SIZE),
            self.block.decay_log,
            self.block.decay_bias,
            self.block.norm,
            states,
            torch.tensor([0, ROUND]),
            torch.tensor([accepted]),
            torch.arange(ROUND).view(1, ROUND),
            1,
            ROUND,
            key_heads=KEYS,
            value_heads=VALUES,
            gate_activation="sigmoid",
            eps=ARCHITECTURE.rms_norm_eps,
        )
        return found


@pytest.fixture(scope="module")
def recurrence() -> tuple[Recurrence, Corrections, Tensor]:
    """The case, our records of the first round, and b12x's states after each of its rows."""
    case = Recurrence()
    states = torch.zeros(ROUND, VALUES, SIZE, SIZE)
    states[0] = case.state.transpose(1, 2)
    case.round(slice(0, ROUND), states, 1)
    return case, delta_rows(case.state, case.rows(slice(0, ROUND)))[1], states


@pytest.mark.parametrize("kept", range(1, ROUND + 1))
def test_recovery_is_the_checkpoint_column_of_every_accepted_count(
    recurrence: tuple[Recurrence, Corrections, Tensor], kept: int
) -> None:
    """States in float32: measured 1e-7. Gated outputs, which b12x rounds three times to BF16: measured 3.2e-3."""
    case, records, columns = recurrence
    state = recover(case.state, records, kept)
    assert apart(columns[kept - 1].transpose(1, 2), state) < FLOAT
    part, states = slice(ROUND, 2 * ROUND), columns.clone()
    wanted = case.round(part, states, kept).flatten(1).float()
    outputs, following = delta_rows(state, case.rows(part))
    found = case.block.finish(case.x[part], outputs, ARCHITECTURE.rms_norm_eps)
    assert apart(wanted @ case.block.output.t(), found) < BF16
    assert apart(states[ROUND - 1].transpose(1, 2), recover(state, following, ROUND)) < FLOAT


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary positions on the first 64 elements, as turns of complex pairs in float64."""
    half, theta = 32, ARCHITECTURE.rope_parameters.rope_theta
    rates = theta ** -(torch.arange(half, dtype=torch.float64) / half)
    places = positions.double().reshape(-1, *[1] * (x.ndim - 1))
    pairs = torch.complex(x[..., :half].double(), x[..., half : 2 * half].double())
    turned = pairs * torch.polar(torch.ones((), dtype=torch.float64), places * rates)
    return torch.cat([turned.real, turned.imag, x[..., 2 * half :].double()], dim=-1).to(x.dtype)


def test_rotary_positions_are_turns_of_pairs() -> None:
    """Angles of some thousands are float32 to within 2^-12: measured 5e-6 over all turned and unturned elements."""
    x, positions = drawn(12)(6, 3, 256), torch.tensor([0, 1, 63, 64, 2047, 5000])
    found = rotate_half(x, positions, 64, ARCHITECTURE.rope_parameters.rope_theta)
    assert apart(rotated(x, positions), found) < 2.0**-12


def compressing(weight: Tensor) -> AttentionBlock:
    """A block of which only the norm of group keys is used: rows are given as they come out of it."""
    nothing = (ABSENT,) * 4
    return AttentionBlock(*nothing, *nothing, weight)


def attention_rows(count: int, seed: int, raw: Tensor) -> AttentionRows:
    """Rows as they come out of the projections, with these raw index keys."""
    a, normal = ARCHITECTURE, drawn(seed)
    queries = normal(count, a.num_attention_heads, a.head_dim)
    keys, values = (normal(count, a.num_key_value_heads, a.head_dim) for _ in range(2))
    index_queries = normal(count, a.indexer_n_heads, a.indexer_head_dim)
    return AttentionRows(queries, queries.flatten(1), keys, values, index_queries, raw)


def test_groups_over_rounds_with_every_accepted_count_are_those_of_the_anchored_ring() -> None:
    """Prefill, then a round for every width and accepted count; group ids exact.

    Raw keys are small integers, whose means BF16 holds; b12x rounds only what it norms: measured 2.3e-3.
    """
    a, theirs, ratio = ARCHITECTURE, reference("attention.qsa"), ARCHITECTURE.indexer_compress_ratio
    weight = drawn(13, exact=True)(a.indexer_head_dim, scale=0.1)
    cache = AttentionCache(a, indexer_of(a), pages=4, rows=1, rowwise=Rowwise(False))
    block = compressing(weight)
    generator, pages = torch.Generator().manual_seed(14), torch.tensor([2, 0, 3, 1])
    capacity = cache.rings.keys.shape[1]
    ring, tags = torch.zeros(capacity, a.indexer_head_dim).bfloat16(), torch.full((capacity,), -1)
    turns, anchor, accepted, first, seen = torch.full((capacity, 1), -1), -1, 1, 0, 0
    rounds = [(5, 5), *((width, kept) for width in range(1, 9) for kept in range(1, width + 1))]
    for width, kept in rounds:
        raw = torch.randint(-16, 17, (width, a.indexer_head_dim), generator=generator).float()
        positions = torch.arange(first, first + width)
        groups, wanted, anchor = theirs.packed_stream_compress_reference(
            raw.bfloat16(),
            positions,
            positions[:, None],
            ring,
            tags,
            turns,
            prior_interval_start_position=anchor,
            num_accepted_tokens=accepted,
            compress_ratio=ratio,
            key_norm_weight=weight.bfloat16(),
            eps=a.rms_norm_eps,
            rope=lambda value, place: rotated(value[None], place)[0],
        )
        cache.attend(block, attention_rows(width, first, raw), Lane(0, 0, width, first, pages))
        assert groups.tolist() == list(range(first // ratio, (first + width) // ratio))
        each = PAGE_TOKENS // ratio
        found = cache.groups[pages[groups // each] * each + groups % each]
        if len(groups):
            assert apart(wanted.float(), found) < BF16
            seen += len(groups)
        first, accepted = first + kept, kept
    assert seen > 36


def test_selection_and_attention_beyond_the_budget() -> None:
    """A round at position 2,604: 651 groups of which 512 are chosen; equal scores go to the lower group.

    Selections exact, attention in float32: measured 1e-6.
    """
    a, theirs, indexer = ARCHITECTURE, reference("attention.qsa"), indexer_of(ARCHITECTURE)
    count, first, normal = 41, 2604, drawn(15)
    cache = AttentionCache(a, indexer, pages=count + 1, rows=1, rowwise=Rowwise(False))
    pages = torch.randperm(count + 1, generator=torch.Generator().manual_seed(16))
    cache.keys.normal_(generator=torch.Generator().manual_seed(17))
    cache.values.normal_(generator=torch.Generator().manual_seed(18))
    cache.groups.copy_(normal(*cache.groups.shape).mul(4).round())
    each = PAGE_TOKENS // a.indexer_compress_ratio
    cache.rings.write(0, first - 4, normal(4, a.indexer_head_dim))
    # Many groups alike: their scores are equal, and the budget's edge falls among them.
    alike = torch.arange(40, 260)
    cache.groups[pages[alike // each] * each + alike % each] = 1.0
    rows = attention_rows(ROUND, 19, normal(ROUND, a.indexer_head_dim))
    rows = replace(rows, index_queries=(rows.index_queries * 4).round())
    found, _ = cache.attend(
        compressing(normal(a.indexer_head_dim, scale=0.1)),
        rows,
        Lane(0, 0, ROUND, first, pages),
    )
    positions = torch.arange(first, first + ROUND)
    groups = torch.arange((first + ROUND) // a.indexer_compress_ratio)
    compressed = cache.groups[pages[groups // each] * each + groups % each]
    _, chosen = theirs.score_select_reference(
        rows.index_queries,
        compressed,
        positions,
        first + ROUND,
        a.indexer_compress_ratio,
        a.indexer_budget,
    )
    mask = indexer.selected(rows.index_queries, compressed, positions)
    for row in range(ROUND):
        assert mask[row].nonzero().flatten().tolist() == sorted(place for place in chosen[row].tolist() if place >= 0)
    among = mask[:, alike * a.indexer_compress_ratio].sum(1)
    assert bool(((among > 0) & (among < len(alike))).any())
    paged = [torch.unflatten(pool, 1, (-1, PAGE_TOKENS)).permute(1, 2, 0, 3) for pool in (cache.keys, cache.values)]
    wanted = theirs.sparse_paged_gqa_reference(
        rows.queries, *paged, pages[None], torch.zeros(ROUND, dtype=torch.int64), chosen, positions
    )
    assert apart(wanted.flatten(1), found) < FLOAT
