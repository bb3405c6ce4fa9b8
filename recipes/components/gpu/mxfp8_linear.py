"""Linear layers over MXFP8 weights for few rows: their own bytes are all that moves, activations stay as they come.

Runs in the worker. A power of two times E4M3 is exact in bfloat16, so this is the layer over the widened matrix
(mxfp8.py) at half its bytes. Many rows, as in a prompt chunk, are left to cuBLAS over the widened matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recipes.components import mxfp8
from recipes.components.gpu.launch import chained, eights, power_above, runs_triton
from recipes.components.gpu.rows import gate_rows
from recipes.components.gpu.streams import Injection

_CHUNK = 128
_MOST_ROWS = 64
"""Up to here rows go through the packed weights, 32 at a time; beyond, widening the matrix first is quicker."""
_AT_ONCE = 32
_FEW_PROGRAMS = 264
"""Two for each multiprocessor of an H200: with fewer programs each takes twice the warps."""
_BLOCKS = 128
"""Of 32 values that a program widens."""
_ONE_WAVE = 528
"""Programs that an H200 runs at once, 128 registers a thread. With more tiles a program walks through two of them; for
more than eight rows they are twice as large instead, since the rows come from the cache once for each tile."""
_AHEAD = 5
"""Chunks of a warp that are asked for before the wait for the kernel before."""


@dataclass(frozen=True, slots=True)
class Mxfp8Weight:
    """`values` float8_e4m3fn [N, K] and `scales` uint8 [N, K / 32] (E8M0), as a checkpoint stores them."""

    values: Tensor
    scales: Tensor

    @property
    def outputs(self) -> int:
        """N."""
        return self.values.shape[0]

    def wide(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The matrix [N, K]; exact in bfloat16 too."""
        if dtype == torch.float32:
            return mxfp8.dequantize(self.values, self.scales)
        blocks = torch.unflatten(self.values.to(dtype), -1, (-1, mxfp8.BLOCK))
        factors = torch.exp2(self.scales.to(torch.float32) - 127).to(dtype)
        return (blocks * factors[..., None]).flatten(-2)

    def to(self, device: torch.device) -> Mxfp8Weight:
        """The same weights on `device`."""
        return Mxfp8Weight(self.values.to(device), self.scales.to(device))


def stacked(*weights: Mxfp8Weight) -> Mxfp8Weight:
    """Layers over the same inputs as one, outputs one after the other."""
    return Mxfp8Weight(
        torch.cat([weight.values for weight in weights]), torch.cat([weight.scales for weight in weights])
    )


def widened(weight: Mxfp8Weight, dtype: torch.dtype) -> Tensor:
    """`Mxfp8Weight.wide` in one kernel: its bytes once in, the matrix once out."""
    if not runs_triton(weight.values):
        return weight.wide(dtype)
    from recipes.components.gpu.mxfp8_wide_kernels import widen

    out, total = torch.empty(weight.values.shape, dtype=dtype, device=weight.values.device), weight.scales.numel()
    widen[(-(-total // _BLOCKS),)](weight.values.view(torch.uint8), weight.scales, out, total, mxfp8.BLOCK, _BLOCKS)
    return out


def mxfp8_linear(x: Tensor, weight: Mxfp8Weight, dtype: torch.dtype | None = None, out: Tensor | None = None) -> Tensor:
    """[R, N] of `x` [R, K], in `dtype` or that of `x`, or in `out`. Sums are float32."""
    dtype = out.dtype if out is not None else dtype or x.dtype
    if runs_triton(x) and len(x) <= _MOST_ROWS:
        return _launch(x, weight, x.new_empty(len(x), weight.outputs, dtype=dtype) if out is None else out)
    kind = x.dtype if runs_triton(x) else torch.float32
    matrix = widened(weight, kind).T
    unrounded = x.is_cuda and kind != dtype == torch.float32
    found = torch.mm(x, matrix, out_dtype=dtype) if unrounded else (x.to(kind) @ matrix).to(dtype)
    return found if out is None else out.copy_(found)


def mxfp8_inject(x: Tensor, weight: Mxfp8Weight, injection: Injection) -> None:
    """The layer's output [R, N] of `x` [R, K] into the streams of `injection`, unrounded."""
    if not runs_triton(x) or len(x) > _MOST_ROWS:
        injection.add(mxfp8_linear(x, weight, torch.float32))
        return
    _launch(x, weight, injection.state, strengths=injection.strengths)


def mxfp8_gated(x: Tensor, weight: Mxfp8Weight) -> Tensor:
    """silu(gate) * up, [R, N / 2] in the type of `x`, through a layer [N, K] that holds gate first, then up."""
    if runs_triton(x) and len(x) <= _MOST_ROWS:
        return _launch(x, weight, x.new_empty(len(x), weight.outputs // 2), gated=True)
    kind = x.dtype if runs_triton(x) else torch.float32
    return gate_rows(mxfp8_linear(x, weight, kind)).to(x.dtype)


def eights_of_rows(count: int) -> int:
    """How many times eight rows a program takes."""
    return max(1, power_above(min(count, _AT_ONCE)) // 8)


def _launch(
    x: Tensor, weight: Mxfp8Weight, out: Tensor, *, gated: bool = False, strengths: Tensor | None = None
) -> Tensor:
    import triton.language as tl

    from recipes.components.gpu.mxfp8_linear_kernels import mxfp8_linear as kernel

    (count, inner), outputs = x.shape, weight.outputs
    parts, chunks, some = eights_of_rows(count), -(-inner // _CHUNK), eights(2)
    tiles = -(-outputs // (8 * some))
    wide = tiles > _ONE_WAVE
    warps = min(8 if tiles < _FEW_PROGRAMS and chunks % 8 == 0 else 4, power_above(chunks))
    turns, early = -(-chunks // warps), chained(x)
    walked, ahead = 1, _AHEAD if warps <= 4 else 3
    if wide and parts == 1:
        walked, ahead = 2, 3
    elif wide:
        some, ahead = eights(4), 2
        tiles = -(-outputs // (8 * some))
    kernel[(-(-tiles // walked), -(-count // (8 * parts)))](
        x, weight.values.view(torch.uint8), weight.scales, out, strengths, count, outputs, inner, warps, some, parts,
        walked, turns, min(ahead, turns * walked), warps > 4 and not gated, gated,
        0 if strengths is None else strengths.shape[1], tl.float32 if x.dtype == torch.float32 else tl.bfloat16,
        early, num_warps=warps, num_stages=1, **({"launch_pdl": True} if early else {}),
    )  # fmt: skip
    return out
