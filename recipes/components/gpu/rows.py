"""Operators on each row by itself: embedding and placing, norms, rotation into pages, gates.

Runs in the worker. On a CPU each is computed as written here, on a card by one kernel (rows_kernels.py). None
of them writes a page for a row that is masked or of a padding lane.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import silu

from recipes.components.device_model import DeviceRows
from recipes.components.gpu.launch import chained, power_above, runs_triton
from recipes.components.paged_attention import Heads
from shared.manifest import PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class Placed:
    """Where rows are. All layers of a forward share it."""

    positions: Tensor
    """int32 [R]: absolute position, -1 where masked."""
    places: Tensor
    """int32 [R]: page * 64 + position % 64, -1 where masked."""
    lengths: Tensor
    """int32 [B]: positions that a lane's last valid row sees, 0 of a lane without rows."""
    tables: Tensor
    """int32 [B, P]: page of position // 64."""
    width: int


def open_rows(rows: DeviceRows, table: Tensor, streams: int = 1) -> tuple[Tensor, Placed]:
    """(streams float32 [R, S * H], where the rows are): embeddings of `table` [V, H], zero where masked, S times."""
    if not runs_triton(table):
        stream, placed = _open_rows(rows, table)
        return stream.repeat(1, streams), placed
    from recipes.components.gpu.rows_kernels import open_rows as kernel

    count, (vocabulary, hidden) = len(rows.tokens), table.shape
    stream = torch.empty(count, streams * hidden, dtype=torch.float32, device=table.device)
    # Each for itself: kernels are compiled once more for what is not aligned.
    positions, places = (torch.empty(count, dtype=torch.int32, device=table.device) for _ in range(2))
    lengths = torch.empty(len(rows.slots), dtype=torch.int32, device=table.device)
    kernel[(count,)](
        rows.tokens, rows.slots, rows.first, rows.counts, rows.tables, table, stream, positions, places, lengths,
        rows.tables.shape[1], vocabulary, rows.width, hidden, power_above(hidden), PAGE_TOKENS, streams,
        **_launch(table),
    )  # fmt: skip
    return stream, Placed(positions, places, lengths, rows.tables, rows.width)


def _open_rows(rows: DeviceRows, table: Tensor) -> tuple[Tensor, Placed]:
    index = torch.arange(rows.width, device=table.device)[None]
    position = rows.first[:, None] + index
    live = (rows.slots >= 0)[:, None] & (index < rows.counts[:, None])
    live &= (position >= 0) & (position < rows.tables.shape[1] * PAGE_TOKENS)
    page = rows.tables.gather(1, torch.where(live, position // PAGE_TOKENS, 0))
    place = torch.where(live & (page >= 0), page * PAGE_TOKENS + position % PAGE_TOKENS, -1)
    known = live.flatten() & (rows.tokens >= 0) & (rows.tokens < len(table))
    stream = table[torch.where(known, rows.tokens, 0)].float() * known[:, None]
    lengths = torch.where((rows.slots >= 0) & (rows.counts > 0), rows.first + rows.counts, 0)
    return stream, Placed(
        torch.where(live, position, -1).flatten().int(), place.flatten().int(), lengths.int(), rows.tables, rows.width
    )


def norm_rows(
    stream: Tensor,
    gain: Tensor,
    epsilon: float,
    change: Tensor | None = None,
    scale: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """norm(stream) [R, H] in `dtype`, after `change` [R, H] times `scale` [H] has been added to the stream itself."""
    if not runs_triton(stream):
        if change is not None:
            stream += change.float() if scale is None else change.float() * scale
        exact = stream.double()
        return (exact * (exact.square().mean(1, keepdim=True) + epsilon).rsqrt() * gain.double()).to(dtype)
    from recipes.components.gpu.rows_kernels import norm_rows as kernel

    count, hidden = stream.shape
    out = torch.empty(count, hidden, dtype=dtype, device=stream.device)
    kernel[(count,)](
        stream, change, scale, gain, out, epsilon, hidden, power_above(hidden), change is not None,
        scale is not None, **_launch(stream),
    )  # fmt: skip
    return out


def turn_and_store(
    projected: Tensor, turns: Tensor, placed: Placed, heads: Heads, pages: Tensor, scale: Tensor | None = None
) -> Tensor:
    """Rotated queries [R, queries * size] of `projected` [R, (queries + 2 * keys) * size]; keys and values to pages.

    `turns` float32 [positions, size], `pages` [pages, 2, keys, 64, size], `scale` of each column. The last page takes
    what rows without a place would write, on a CPU; it is in no table.
    """
    if not runs_triton(projected):
        return _turn_and_store(projected if scale is None else projected * scale, turns, placed, heads, pages)
    from recipes.components.gpu.rows_kernels import turn_and_store as kernel

    count = len(projected)
    queries = torch.empty(count, heads.queries * heads.size, dtype=pages.dtype, device=projected.device)
    kernel[(count, heads.queries + 2 * heads.keys)](
        projected, scale, turns, placed.positions, placed.places, queries, pages, heads.queries, heads.keys, heads.size,
        power_above(heads.size // 2), PAGE_TOKENS, scale is not None, **_launch(projected), num_warps=1,
    )  # fmt: skip
    return queries


def _turn_and_store(projected: Tensor, turns: Tensor, placed: Placed, heads: Heads, pages: Tensor) -> Tensor:
    count = len(projected)
    split = projected.float().view(count, -1, heads.size // 2, 2)
    turn = torch.view_as_complex(turns[placed.positions.clamp_min(0).long()].view(count, 1, -1, 2))
    turned = torch.view_as_complex(split[:, : heads.queries + heads.keys].contiguous()) * turn
    state = split[:, heads.queries :].clone()
    state[:, : heads.keys] = torch.view_as_real(turned[:, heads.queries :])
    scratch = (len(pages) - 1) * PAGE_TOKENS
    place = torch.where(placed.places >= 0, placed.places, scratch).long()
    pages[place // PAGE_TOKENS, :, :, place % PAGE_TOKENS] = state.view(count, 2, heads.keys, -1).to(pages.dtype)
    return torch.view_as_real(turned[:, : heads.queries]).reshape(count, -1).to(pages.dtype)


def gate_rows(both: Tensor, scale: Tensor | None = None) -> Tensor:
    """silu(gate) * up [R, N] of `both` [R, 2 * N] times `scale` of each column."""
    outputs = both.shape[1] // 2
    if not runs_triton(both):
        wide = both.float() if scale is None else both.float() * scale
        return (silu(wide[:, :outputs]) * wide[:, outputs:]).to(both.dtype)
    from recipes.components.gpu.rows_kernels import gate_rows as kernel

    out = torch.empty(len(both), outputs, dtype=both.dtype, device=both.device)
    block = min(1024, power_above(outputs))
    kernel[(len(both), -(-outputs // block))](both, scale, out, outputs, block, scale is not None, **_launch(both))
    return out


def _launch(tensor: Tensor) -> dict[str, bool]:
    early = chained(tensor)
    return {"CHAINED": True, "launch_pdl": True} if early else {"CHAINED": False}
