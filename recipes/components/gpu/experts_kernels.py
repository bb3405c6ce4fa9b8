"""Triton kernels of a mixture of experts over NVFP4 weights, for few rows: each chosen expert's bytes are read once.

Activations are not rounded to four bits (W4A16). A program holds outputs of one expert for all rows that chose it, or,
if there are few, for one of them; a row's sums are always taken in one order and its experts added in the order of
their rank, so that a result depends neither on neighbours nor on which programs were quick.
"""

# mypy: disable-error-code="untyped-decorator, assignment, var-annotated, no-any-return"
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from recipes.components.gpu.expert_walk_kernels import fp4_ahead, fp4_places, fp4_rows
from recipes.components.gpu.mxfp8_linear_kernels import feed_streams, fp8_ahead, fp8_rows, fp8_whole, take_streams
from recipes.components.gpu.packed_kernels import fp4_whole, turned


@triton.jit
def _picks(
    chosen: tl.tensor, own: tl.tensor, expert: tl.tensor, R: tl.tensor, TOP: tl.constexpr, BT: tl.constexpr,
    BR: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """[BR], or [8] for one row: the pick (row * TOP + rank) by which each row chose this program's expert, or -1."""
    if BR == 1:
        picks = tl.where(tl.arange(0, 8) == 0, own, -1)
    else:
        row, rank = tl.arange(0, BR)[:, None], tl.arange(0, BT)[None, :]
        pick = row * TOP + rank
        there = tl.load(chosen + pick, mask=(row < R) & (rank < TOP), other=-1)
        picks = tl.max(tl.where(there == expert, pick, -1), 1)
    return picks


@triton.jit
def _serves(picks: tl.tensor, own: tl.tensor, TOP: tl.constexpr, BR: tl.constexpr) -> tl.tensor:
    """Whether this program's pick is the first of its expert."""
    first = own if BR == 1 else tl.min(tl.where(picks >= 0, picks, BR * TOP))
    return first == own


@triton.jit
def _eight(picks: tl.tensor, start: tl.tensor, BR: tl.constexpr) -> tl.tensor:
    """[8]: picks `start` to `start` + 7 of those there are, or the one row's."""
    if BR == 1:
        found = picks
    else:
        place = tl.cumsum((picks >= 0).to(tl.int32), 0) - 1
        here = (picks >= 0)[None, :] & (place[None, :] == start + tl.arange(0, 8)[:, None])
        found = tl.max(tl.where(here, picks[None, :], -1), 1)
    return found


@triton.jit
def experts_in(
    x: tl.tensor, packed: tl.tensor, scales: tl.tensor, singles: tl.tensor, chosen: tl.tensor, out: tl.tensor,
    R: tl.tensor, TOP: tl.constexpr, BT: tl.constexpr, BR: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    S: tl.constexpr, T: tl.constexpr, TURNS: tl.constexpr, AHEAD: tl.constexpr, TURNED: tl.constexpr,
    TYPE: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """`out` [R, TOP, N] = silu(gate) * up of each row's experts; matrices [E, 2 * N, ...], `singles` [E, 2].

    The program of the first row that chose an expert serves all that did, eight at a time; the others do nothing.
    It has 4 * T outputs. `out` is `turned` if that goes up evenly. `TURNED`: so is `x`.
    """
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    pick = tl.program_id(1)
    expert = tl.load(chosen + pick)
    picks = _picks(chosen, pick, expert, R, TOP, BT, BR)
    if (expert >= 0) & _serves(picks, pick, TOP, BR):
        width: tl.constexpr = 4 * T
        whole: tl.constexpr = (N % width == 0) & (K == 128 * TURNS * S)
        base = tl.program_id(0) * width
        times, eight = tl.arange(0, T), tl.arange(0, 8)
        column = base + (times // 2) * 8
        half = expert * (2 * N) + (times % 2) * N + column
        line = half[None, None, :, None] + eight[:, None, None, None]
        scale_line = half[None, None, None, :] + eight[None, :, None, None]
        room = N - (column[None, None, :, None] + eight[:, None, None, None])
        scale_room = N - (column[None, None, None, :] + eight[None, :, None, None])
        at = fp4_places(packed, scales, line, scale_line, room, scale_room, K, S, True)
        held = fp4_ahead(at, K, S, True, AHEAD, whole)
        single, second = tl.load(singles + 2 * expert), tl.load(singles + 2 * expert + 1)
        for start in range(0, tl.sum((picks >= 0).to(tl.int32), 0) if BR > 1 else 1, 8):
            own = _eight(picks, start, BR)
            # Columns of the matrix units that no row has take the first one's.
            row = tl.where(own >= 0, own, pick) // TOP
            found = tl.sum(
                fp4_rows(x, row, held, at, K, S, T, True, TURNS, AHEAD, whole, BR > 1, TURNED, TYPE), 0
            )  # fmt: skip
            gate, up = tl.split(tl.permute(tl.reshape(found, (T // 2, 2, 8, 8)), (0, 2, 3, 1)))
            gate, up = gate * fp4_whole(single, TYPE), up * fp4_whole(second, TYPE)
            inner = tl.reshape(gate * tl.sigmoid(gate) * up, (width, 8))
            output = base + tl.arange(0, width)[:, None]
            place = out + own.to(tl.int64)[None, :] * N + (turned(output) if N % 32 == 0 else output)
            tl.store(place, inner.to(out.dtype.element_ty), mask=(own >= 0)[None, :] & (output < N))


@triton.jit
def _outputs(
    inner: tl.tensor, packed: tl.tensor, scales: tl.tensor, singles: tl.tensor, chosen: tl.tensor, out: tl.tensor,
    pick: tl.tensor, base: tl.tensor, R: tl.tensor, TOP: tl.constexpr, BT: tl.constexpr, BR: tl.constexpr,
    STRIDE: tl.constexpr, N: tl.constexpr, K: tl.constexpr, S: tl.constexpr, T: tl.constexpr,
    TURNS: tl.constexpr, AHEAD: tl.constexpr, TYPE: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """8 * S * T outputs from `base` on of a pick's expert, for all rows that this program serves.

    `out` float32 [R, STRIDE, N] by row and rank.
    """
    # Routing came before the kernel before: what was chosen stands, and its weights may be asked for.
    expert = tl.load(chosen + pick)
    picks = _picks(chosen, pick, expert, R, TOP, BT, BR)
    if (expert >= 0) & _serves(picks, pick, TOP, BR):
        whole: tl.constexpr = (N % (8 * S * T) == 0) & (K == 128 * TURNS)
        slice, times, eight = tl.arange(0, S) * (8 * T), tl.arange(0, T) * 8, tl.arange(0, 8)
        here = base + slice[None, :, None, None] + times[None, None, :, None] + eight[:, None, None, None]
        there = base + slice[None, None, :, None] + times[None, None, None, :] + eight[None, :, None, None]
        at = fp4_places(packed, scales, expert * N + here, expert * N + there, N - here, N - there, K, S, False)
        held = fp4_ahead(at, K, S, False, AHEAD, whole)
        single = tl.load(singles + expert)
        if CHAINED:
            gdc_wait()
            gdc_launch_dependents()
        for start in range(0, tl.sum((picks >= 0).to(tl.int32), 0) if BR > 1 else 1, 8):
            own = _eight(picks, start, BR)
            found = fp4_rows(
                inner, tl.where(own >= 0, own, pick), held, at, K, S, T, False, TURNS, AHEAD, whole, BR > 1,
                K % 32 == 0, TYPE,
            )  # fmt: skip
            found, output = tl.reshape(found, (8 * S * T, 8)), base + tl.arange(0, 8 * S * T)[:, None]
            place = (own // TOP * STRIDE + own % TOP).to(tl.int64)[None, :] * N + output
            tl.store(out + place, found * fp4_whole(single, TYPE), mask=(own >= 0)[None, :] & (output < N))
    elif CHAINED:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def _shared_outputs(
    inner: tl.tensor, values: tl.tensor, scales: tl.tensor, gates: tl.tensor, out: tl.tensor, start: tl.tensor,
    base: tl.tensor, R: tl.tensor, STRIDE: tl.constexpr, N: tl.constexpr, K: tl.constexpr, S: tl.constexpr,
    T: tl.constexpr, TURNS: tl.constexpr, AHEAD: tl.constexpr, TYPE: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """The same outputs of the shared expert times `gates` [R], for eight rows from `start` on of `inner` [R, K]."""
    first = base + tl.arange(0, S) * (8 * T)
    held = fp8_ahead(values, scales, first, N, K, S, T, 0, False, TURNS, AHEAD)
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    row, output = start + tl.arange(0, 8), base + tl.arange(0, 8 * S * T)[:, None]
    gate = tl.load(gates + row, mask=row < R, other=0)[None, :]
    found, held = fp8_rows(
        inner, values, scales, held, first, start, R, N, K, S, T, 1, 0, False, TURNS, AHEAD, 0, 1, TYPE
    )  # fmt: skip
    found = fp8_whole(tl.reshape(found, (8 * S * T, 8)), TYPE) * gate
    at = out + (row * STRIDE + (STRIDE - 1)).to(tl.int64)[None, :] * N + output
    tl.store(at, found, mask=(row < R)[None, :] & (output < N))


@triton.jit
def experts_out(
    inner: tl.tensor, packed: tl.tensor, scales: tl.tensor, singles: tl.tensor, chosen: tl.tensor, out: tl.tensor,
    R: tl.tensor, TOP: tl.constexpr, BT: tl.constexpr, BR: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    S: tl.constexpr, T: tl.constexpr, TURNS: tl.constexpr, AHEAD: tl.constexpr, TYPE: tl.constexpr,
    CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """`out` float32 [R, TOP, N]: each expert's output of its own `inner` [R, TOP, K], as `experts_in` made it."""
    _outputs(
        inner, packed, scales, singles, chosen, out, tl.program_id(1), tl.program_id(0) * (8 * S * T), R, TOP, BT,
        BR, TOP, N, K, S, T, TURNS, AHEAD, TYPE, CHAINED,
    )  # fmt: skip


@triton.jit
def _into_streams(
    parts: tl.tensor, weights: tl.tensor, state: tl.tensor, strengths: tl.tensor, row: tl.tensor, column: tl.tensor,
    R: tl.tensor, TOP: tl.constexpr, N: tl.constexpr, STREAMS: tl.constexpr,
) -> None:  # fmt: skip
    """What `parts` [R, TOP + 1, N] of rows say at columns goes into their streams: always added in one order."""
    streams = take_streams(state, strengths, row, column, R, N, STREAMS)
    here = (row < R)[None, :] & (column < N)[:, None]
    at = parts + (row * (TOP + 1)).to(tl.int64)[None, :] * N + column[:, None]
    total = tl.load(at + TOP * N, mask=here, other=0)
    for rank in tl.static_range(TOP):
        weight = tl.load(weights + row * TOP + rank, mask=row < R, other=0)[None, :]
        # Nobody has computed what has no weight.
        total += tl.where(weight == 0, 0.0, tl.load(at + rank * N, mask=here, other=0) * weight)
    feed_streams(state, streams, total, row, column, R, N, STREAMS)


@triton.jit
def experts_and_shared(
    inner: tl.tensor, packed: tl.tensor, scales: tl.tensor, singles: tl.tensor, chosen: tl.tensor, shared: tl.tensor,
    values: tl.tensor, powers: tl.tensor, gates: tl.tensor, parts: tl.tensor, weights: tl.tensor, state: tl.tensor,
    strengths: tl.tensor, tickets: tl.tensor, R: tl.tensor, TOP: tl.constexpr, BT: tl.constexpr, BR: tl.constexpr,
    N: tl.constexpr, K: tl.constexpr, J: tl.constexpr, S: tl.constexpr, T: tl.constexpr,
    TURNS: tl.constexpr, AHEAD: tl.constexpr, OWN_TURNS: tl.constexpr, OWN_AHEAD: tl.constexpr, STREAMS: tl.constexpr,
    ROWS: tl.constexpr, TYPE: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """`parts` float32 [R, TOP + 1, N]: as `experts_out`, and the shared expert's output times its gate [R].

    That is its `shared` [R, J] through an MXFP8 matrix. With `ROWS`, which are at least as many as there are, the last
    program of some columns puts into the streams what all of them said (`_into_streams`); `tickets` are zero before.
    """
    blocks = tl.cdiv(R, 8)
    base = tl.program_id(0) * (8 * S * T)
    if tl.program_id(1) < blocks:
        _shared_outputs(
            shared, values, powers, gates, parts, tl.program_id(1) * 8, base, R, TOP + 1, N, J, S, T, OWN_TURNS,
            OWN_AHEAD, TYPE, CHAINED,
        )  # fmt: skip
    else:
        _outputs(
            inner, packed, scales, singles, chosen, parts, tl.program_id(1) - blocks, base, R, TOP, BT, BR, TOP + 1, N,
            K, S, T, TURNS, AHEAD, TYPE, CHAINED,
        )  # fmt: skip
    if ROWS > 0:
        # What all threads of a program stored comes before its ticket, and what the others did before the last one's.
        tl.debug_barrier()
        if tl.atomic_add(tickets + tl.program_id(0), 1, sem="acq_rel", scope="gpu") == tl.num_programs(1) - 1:
            column = base + tl.arange(0, 8 * S * T)
            _into_streams(parts, weights, state, strengths, tl.arange(0, ROWS), column, R, TOP, N, STREAMS)


@triton.jit
def sum_parts(
    parts: tl.tensor, weights: tl.tensor, state: tl.tensor, strengths: tl.tensor, R: tl.tensor, TOP: tl.constexpr,
    N: tl.constexpr, COLUMNS: tl.constexpr, STREAMS: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """`_into_streams`, eight rows and `COLUMNS` a program."""
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    row, column = tl.program_id(1) * 8 + tl.arange(0, 8), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    _into_streams(parts, weights, state, strengths, row, column, R, TOP, N, STREAMS)


@triton.jit
def add_experts(
    parts: tl.tensor, weights: tl.tensor, shared: tl.tensor, gate: tl.tensor, out: tl.tensor, GATE_STRIDE: tl.constexpr,
    TOP: tl.constexpr, BT: tl.constexpr, N: tl.constexpr, BN: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """`out` [R, N] = sigmoid(gate [R]) * shared [R, N] + weighted sum of `parts` [R, TOP, N], always in one order."""
    row = tl.program_id(0)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    rank = tl.arange(0, BT)
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    at = row.to(tl.int64) * N + column
    weight = tl.load(weights + row * TOP + rank, mask=rank < TOP, other=0)
    here = (rank < TOP)[:, None] & (column < N)[None, :]
    part = tl.load(parts + (row * TOP + rank).to(tl.int64)[:, None] * N + column[None, :], mask=here, other=0)
    total = tl.sigmoid(tl.load(gate + row * GATE_STRIDE).to(tl.float32))
    total = total * tl.load(shared + at, mask=column < N, other=0).to(tl.float32)
    # Nobody has computed what has no weight.
    total += tl.sum(tl.where(weight[:, None] == 0, 0.0, part * weight[:, None]), 0)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=column < N)
