"""The gated delta rule: rows, chunks and recovery agree, and recovery equals the checkpoint columns exactly."""

from __future__ import annotations

import pytest
import torch

from recipes.components.gated_delta import CHUNK, DeltaRows, delta_chunks, delta_rows
from recipes.components.gdn_recovery import checkpoint_columns, recover
from recipes.components.short_convolution import advanced, convolve, history_length

HEADS, KEY, VALUE = 6, 16, 24


def rows_of(count: int, seed: int) -> tuple[torch.Tensor, DeltaRows]:
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> torch.Tensor:
        found: torch.Tensor = torch.randn(*shape, generator=generator)
        return found

    unit = torch.nn.functional.normalize
    rows = DeltaRows(
        unit(drawn(count, HEADS, KEY), dim=-1) * KEY**-0.5,
        unit(drawn(count, HEADS, KEY), dim=-1),
        drawn(count, HEADS, VALUE),
        torch.rand(count, HEADS, generator=generator) * 0.98 + 0.01,
        torch.rand(count, HEADS, generator=generator),
    )
    return drawn(HEADS, KEY, VALUE), rows


def written_out(state: torch.Tensor, rows: DeltaRows) -> torch.Tensor:
    """The rule head by head in float64, straight from its equation."""
    outputs = torch.zeros(len(rows.keys), HEADS, VALUE, dtype=torch.float64)
    for head in range(HEADS):
        matrix = state[head].double()
        for row in range(len(rows.keys)):
            query, key, value = (t[row, head].double() for t in (rows.queries, rows.keys, rows.values))
            matrix = float(rows.decays[row, head]) * matrix
            matrix = matrix + torch.outer(key, float(rows.betas[row, head]) * (value - matrix.t() @ key))
            outputs[row, head] = matrix.t() @ query
    return outputs


@pytest.mark.parametrize("count", [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
def test_chunks_and_rows_are_the_rule_as_it_is_written(count: int) -> None:
    state, rows = rows_of(count, count)
    by_row, records = delta_rows(state, rows)
    by_chunk, final = delta_chunks(state, rows)
    wanted = written_out(state, rows).float()
    torch.testing.assert_close(by_row, wanted, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(by_chunk, wanted, rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(final, recover(state, records, count), rtol=1e-5, atol=2e-6)


def test_decays_near_zero_do_not_spoil_a_chunk() -> None:
    state, rows = rows_of(CHUNK, 7)
    rows = DeltaRows(rows.queries, rows.keys, rows.values, rows.decays * 1e-6, rows.betas)
    torch.testing.assert_close(delta_chunks(state, rows)[0], delta_rows(state, rows)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kept", range(9))
def test_recovery_of_every_prefix_equals_going_on_from_there(kept: int) -> None:
    state, rows = rows_of(8, 11)
    _, records = delta_rows(state, rows)
    assert torch.equal(recover(state, records, kept), checkpoint_columns(state, records)[kept])
    head = DeltaRows(*(t[:kept] for t in (rows.queries, rows.keys, rows.values, rows.decays, rows.betas)))
    if kept:
        assert torch.equal(recover(state, records, kept), recover(state, delta_rows(state, head)[1], kept))


@pytest.fixture(scope="module")
def real_round() -> tuple[torch.Tensor, DeltaRows]:
    """A state and eight rows at the real geometry: 16 key heads, each for three of 48 value heads, all of 128."""
    generator = torch.Generator().manual_seed(12)

    def drawn(*shape: int) -> torch.Tensor:
        found: torch.Tensor = torch.randn(*shape, generator=generator)
        return found

    unit = torch.nn.functional.normalize
    queries, keys = (unit(drawn(8, 16, 128), dim=-1).repeat_interleave(3, dim=1) for _ in range(2))
    decays, betas = (torch.rand(8, 48, generator=generator) for _ in range(2))
    return drawn(48, 128, 128), DeltaRows(queries * 128**-0.5, keys, drawn(8, 48, 128), decays * 0.98 + 0.01, betas)


def full_snapshots(state: torch.Tensor, rows: DeltaRows, dtype: torch.dtype) -> list[torch.Tensor]:
    """The state after 0, 1, ... rows as matrix products, each kept whole; no records."""
    state, found = state.to(dtype), [state.to(dtype)]
    for row in range(len(rows.keys)):
        key, value = rows.keys[row].to(dtype).unsqueeze(-1), rows.values[row].to(dtype).unsqueeze(1)
        decayed = rows.decays[row].to(dtype)[:, None, None] * state
        beta = rows.betas[row].to(dtype)[:, None, None]
        state = decayed + torch.bmm(key, beta * (value - torch.bmm(key.transpose(1, 2), decayed)))
        found.append(state)
    return found


@pytest.mark.parametrize("kept", range(9))
def test_compact_commit_equals_a_full_snapshot_at_the_real_geometry(
    real_round: tuple[torch.Tensor, DeltaRows], kept: int
) -> None:
    """mtp-design.md, "The compact commit requires component state equivalence against full snapshots".

    Compact states may be as far from float64 as twice the snapshots in float32 are: the two sum in different orders.
    Equal bits are asked of the two ways to come to the same prefix: from eight records, and from its own alone.
    """
    state, rows = real_round
    _, records = delta_rows(state, rows)
    found = recover(state, records, kept)
    exact, single = (full_snapshots(state, rows, dtype)[kept] for dtype in (torch.float64, torch.float32))
    error = float((found.double() - exact).abs().max())
    assert error <= 2 * float((single.double() - exact).abs().max())
    assert error < 2e-6
    assert torch.equal(found, checkpoint_columns(state, records)[kept])
    if kept:
        prefix = DeltaRows(*(t[:kept] for t in (rows.queries, rows.keys, rows.values, rows.decays, rows.betas)))
        assert torch.equal(found, recover(state, delta_rows(state, prefix)[1], kept))


@pytest.mark.parametrize("dilation", [1, 3])
def test_a_convolution_continues_over_every_accepted_count(dilation: int) -> None:
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(10, 4, generator=generator)
    inputs = torch.randn(30, 10, generator=generator)
    length = history_length(4, dilation)
    whole = convolve(torch.zeros(length, 10), inputs, weight, dilation)
    for kept in range(9):
        history = advanced(torch.zeros(length, 10), inputs[:5], 5)
        wrong = inputs[5:13].clone()
        wrong[kept:] = torch.nan
        history = advanced(history, wrong, kept)
        found = convolve(history, inputs[5 + kept : 20], weight, dilation)
        torch.testing.assert_close(found, whole[5 + kept : 20])
