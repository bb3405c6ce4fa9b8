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
