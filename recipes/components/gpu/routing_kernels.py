"""Triton kernels of a router, for few rows: scores in parts, and the choice, beside the shared expert's inner rows.

Scores take all inputs at once, spread over programs; whoever reads them adds the parts in one order. The choice is a
long chain of little work, so the shared expert, which needs no choice, is computed beside it.
"""

# mypy: disable-error-code="untyped-decorator, assignment"
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from recipes.components.gpu.mxfp8_linear_kernels import fp8_ahead, fp8_rows, fp8_whole, gated
from recipes.components.gpu.packed_kernels import take_inputs

_LOWEST = tl.constexpr(-0x80000000)


@triton.jit
def score_parts(
    x: tl.tensor, router: tl.tensor, parts: tl.tensor, R: tl.tensor, N: tl.constexpr, LINES: tl.constexpr,
    K: tl.constexpr, S: tl.constexpr, T: tl.constexpr, P: tl.constexpr, SPLITS: tl.constexpr, TYPE: tl.constexpr,
    CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """`parts` float32 [SPLITS, R, LINES], the first N of which add up to `x` [R, K] times `router` [N, K] transposed.

    A program has 8 * T outputs and a chunk of 128 inputs for each of its `S` warps.
    """
    split = tl.program_id(0) % SPLITS
    first = tl.program_id(0) // SPLITS * (8 * T)
    whole: tl.constexpr = K == 128 * S * SPLITS
    chunk = tl.reshape(split * S + tl.arange(0, S), (1, S, 1, 1, 1))
    eight = tl.arange(0, 8)[:, None, None, None, None]
    line = first + tl.arange(0, T)[None, None, :, None, None] * 8 + eight
    weights = take_inputs(router, tl.minimum(line, N - 1).to(tl.int64) * K, chunk, K, T, S, whole)
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    place = tl.program_id(1) * (8 * P) + tl.arange(0, P)[None, None, :, None, None] * 8 + eight
    rows = take_inputs(x, tl.minimum(place, R - 1).to(tl.int64) * K, chunk, K, P, S, whole)
    weights = tl.permute(tl.reshape(weights, (8, S, T, 4, 4, 2, 2, 2)), (1, 2, 0, 3, 5, 6, 4, 7))
    rows = tl.permute(tl.reshape(rows, (8, S, P, 4, 4, 2, 2, 2)), (1, 3, 5, 6, 4, 7, 2, 0))
    weights, rows = tl.reshape(weights, (S, 8 * T, 128)), tl.reshape(rows, (S, 128, 8 * P))
    found = tl.zeros((S, 8 * T, 8 * P), tl.float32)
    found = tl.sum(tl.dot(weights.to(TYPE), rows.to(TYPE), found, input_precision="ieee"), 0)
    row = tl.program_id(1) * (8 * P) + tl.arange(0, 8 * P)[None, :]
    output = first + tl.arange(0, 8 * T)[:, None]
    tl.store(parts + (split * R + row).to(tl.int64) * LINES + output, found, mask=(row < R) & (output < N))


@triton.jit
def _choose(
    score: tl.tensor, weights: tl.tensor, chosen: tl.tensor, alive: tl.tensor, BE: tl.constexpr, TOP: tl.constexpr,
    BT: tl.constexpr,
) -> None:  # fmt: skip
    """The `TOP` best of softmax(`score` [BE]), renormalised; equal ones go to the lower expert. Not `alive`: nobody."""
    at, ranks = tl.arange(0, BE), tl.arange(0, BT)
    # Positive floats are in the order of their bits, and integers are compared across a warp in one instruction.
    left = tl.exp(score - tl.max(score, 0)).to(tl.int32, bitcast=True)
    best, found = tl.zeros([BT], tl.float32), tl.zeros([BT], tl.int32)
    for rank in tl.static_range(TOP):
        highest = tl.max(left, 0)
        expert = tl.min(tl.where(left == highest, at, BE), 0)
        left = tl.where(at == expert, -1, left)
        best = tl.where(ranks == rank, highest.to(tl.float32, bitcast=True), best)
        found = tl.where(ranks == rank, expert, found)
    tl.store(weights + ranks, tl.where(alive, best / tl.sum(best, 0), 0.0), mask=ranks < TOP)
    tl.store(chosen + ranks, tl.where(alive, found, -1), mask=ranks < TOP)


@triton.jit
def route(
    scores: tl.tensor, weights: tl.tensor, chosen: tl.tensor, live: tl.tensor, STRIDE: tl.constexpr, E: tl.constexpr,
    BE: tl.constexpr, TOP: tl.constexpr, BT: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """One row a program: its choice by scores [R, E].

    Rows whose `live` int32 [R], if there is one, is negative choose nobody. It came long before the scores.
    """
    row, at = tl.program_id(0), tl.arange(0, BE)
    alive = row >= 0 if live is None else tl.load(live + row) >= 0
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    score = tl.load(scores + row * STRIDE + at, mask=at < E, other=-float("inf")).to(tl.float32)
    _choose(score, weights + row * TOP, chosen + row * TOP, alive, BE, TOP, BT)


@triton.jit
def _route_row(
    parts: tl.tensor, weights: tl.tensor, chosen: tl.tensor, gates: tl.tensor, live: tl.tensor, row: tl.tensor,
    R: tl.tensor, LINES: tl.constexpr, E: tl.constexpr, BE: tl.constexpr, TOP: tl.constexpr, BT: tl.constexpr,
    SPLITS: tl.constexpr, SHARES: tl.constexpr,
) -> None:  # fmt: skip
    """A row's choice by `parts` [SPLITS, R, LINES] of scores, and the sigmoid of what is behind the experts' scores.

    As `_choose` in less time: each warp finds the best of its share, and then all of these are ranked at once.
    """
    alive = row >= 0 if live is None else tl.load(live + row) >= 0
    each: tl.constexpr = BE // SHARES
    at, ranks = tl.arange(0, SHARES)[:, None] * each + tl.arange(0, each)[None, :], tl.arange(0, BT)[None, :]
    score, gate = tl.zeros((SHARES, each), tl.float32), 0.0
    for split in tl.static_range(SPLITS):
        line = parts + (split * R + row).to(tl.int64) * LINES
        score += tl.load(line + at, mask=at < E, other=-float("inf"))
        gate += tl.load(line + E)
    tl.store(gates + row, tl.sigmoid(gate))
    # Integers in the order of the scores are compared across a warp in one instruction.
    left = score.to(tl.int32, bitcast=True)
    left = tl.where(left < 0, left ^ 0x7FFFFFFF, left)
    best, found = tl.full((SHARES, BT), _LOWEST, tl.int32), tl.full((SHARES, BT), BE, tl.int32)
    for rank in tl.static_range(min(TOP, each)):
        highest = tl.max(left, 1)[:, None]
        expert = tl.min(tl.where(left == highest, at, BE), 1)[:, None]
        left = tl.where(at == expert, _LOWEST, left)
        best = tl.where(ranks == rank, highest, best)
        found = tl.where(ranks == rank, expert, found)
    best, found = tl.reshape(best, (SHARES * BT,)), tl.reshape(found, (SHARES * BT,))
    before = (best[None, :] > best[:, None]) | ((best[None, :] == best[:, None]) & (found[None, :] < found[:, None]))
    rank = tl.sum(before.to(tl.int32), 1)
    here = (rank < TOP) & (found < BE)
    own = tl.where(best < 0, best ^ 0x7FFFFFFF, best).to(tl.float32, bitcast=True)
    weight = tl.where(here, tl.exp(own - tl.max(own, 0)), 0.0)
    tl.store(weights + row * TOP + rank, tl.where(alive, weight / tl.sum(weight, 0), 0.0), mask=here)
    tl.store(chosen + row * TOP + rank, tl.where(alive, found, -1), mask=here)


@triton.jit
def _turn_row(x: tl.tensor, out: tl.tensor, K: tl.constexpr, BK: tl.constexpr) -> None:
    """`out` [K] is `x` [K] in the order of `turned` (packed_kernels.py)."""
    for start in range(0, K, BK):
        at = start + tl.arange(0, BK)
        value = tl.load(x + at, mask=at < K, other=0)
        value = tl.permute(tl.reshape(value, (BK // 32, 2, 2, 2, 4)), (0, 4, 2, 1, 3))
        tl.store(out + at, tl.reshape(value, (BK,)), mask=at < K)


@triton.jit
def route_and_share(
    x: tl.tensor, parts: tl.tensor, weights: tl.tensor, chosen: tl.tensor, gates: tl.tensor, live: tl.tensor,
    out: tl.tensor, tickets: tl.tensor, values: tl.tensor, scales: tl.tensor, inner: tl.tensor, R: tl.tensor,
    LINES: tl.constexpr, E: tl.constexpr, BE: tl.constexpr, TOP: tl.constexpr, BT: tl.constexpr, SPLITS: tl.constexpr,
    TICKETS: tl.constexpr, N: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, S: tl.constexpr, T: tl.constexpr,
    P: tl.constexpr, TURNS: tl.constexpr, AHEAD: tl.constexpr, TYPE: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """Each row's choice (`_route_row`), `out` [R, K] that is `x` turned, `inner` [R, N] of the shared expert.

    That one's matrix [2 * N, K] is MXFP8 and asked for before the wait. Each is programs of its own: a row, a row,
    and 4 * T outputs of 8 * P rows. `tickets` int32 [a power of two] become zero for the kernel after the next one.
    """
    program, tiles = tl.program_id(0), tl.cdiv(N, 4 * T)
    if program < R:
        if CHAINED:
            gdc_wait()
            gdc_launch_dependents()
        if program == 0:
            tl.store(tickets + tl.arange(0, TICKETS), 0)
        shares: tl.constexpr = S if BE >= S else 1
        _route_row(parts, weights, chosen, gates, live, program, R, LINES, E, BE, TOP, BT, SPLITS, shares)
    elif program < 2 * R:
        if CHAINED:
            gdc_wait()
            gdc_launch_dependents()
        line = (program - R).to(tl.int64) * K
        _turn_row(x + line, out + line, K, BK)
    else:
        first, start = (program - 2 * R) % tiles * (4 * T), (program - 2 * R) // tiles * (8 * P)
        lines = first + tl.zeros([S], tl.int32)
        held = fp8_ahead(values, scales, lines, 2 * N, K, S, T, N, True, TURNS, AHEAD)
        if CHAINED:
            gdc_wait()
            gdc_launch_dependents()
        found, held = fp8_rows(
            x, values, scales, held, lines, start, R, 2 * N, K, S, T, P, N, True, TURNS, AHEAD, 0, 1, TYPE
        )  # fmt: skip
        found = gated(fp8_whole(tl.sum(found, 0), TYPE), T, P)
        row, column = start + tl.arange(0, 8 * P)[None, :], first + tl.arange(0, 4 * T)[:, None]
        at = inner + row.to(tl.int64) * N + column
        tl.store(at, found.to(inner.dtype.element_ty), mask=(row < R) & (column < N))
