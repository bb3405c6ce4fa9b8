"""Experts against b12x's references at a quarter of the real widths: W4A4 and W4A16, scales through CSF and plain.

b12x scales the sums where we scale the operands, and adds in another order: FLOAT is for that. Where activations are
rounded, such a difference may push an inner value over the edge between two codes, which is worth a step of its block;
at most one row in eight is allowed such a step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from recipes.components import csf, nvfp4
from recipes.components.diagnostics import relative_l2
from recipes.components.experts import Mixture
from recipes.components.nvfp4_activations import InputScales, rounded
from tests.components.nvfp4_rounding import rounded_by_ml_dtypes
from tests.recipes.qwen38 import b12x_references
from tests.recipes.qwen38.test_second_opinion import FLOAT, drawn

HIDDEN, INNER, EXPERTS, TOP, ROWS = 640, 160, 6, 3, 8
STEP = 0.05
"""What one inner value, moved by a step of its block, changes of a row at most."""


@dataclass(frozen=True, slots=True)
class Packed:
    """One matrix of each expert as it is stored: bytes, E4M3 scales, and the float32 scale."""

    values: Tensor
    scales: Tensor
    single: Tensor

    def restored(self, *, through_csf: bool) -> Tensor:
        """Dequantised [E, out, in]."""
        found = []
        for values, scales, single in zip(self.values, self.scales, self.single, strict=True):
            stored = scales.view(torch.uint8)
            if through_csf:
                stored = csf.decode(*csf.encode(stored), *stored.shape)
            found.append(nvfp4.dequantize(values, stored.view(torch.float8_e4m3fn), single))
        return torch.stack(found)

    def swizzled(self, intrinsics: Any) -> Tensor:
        """Scales in the order in which b12x's kernels read them."""
        found: Tensor = intrinsics.swizzle_block_scale(self.scales.view(torch.uint8)).view(torch.float8_e4m3fn)
        return found


def packed(seed: int, rows: int, columns: int) -> Packed:
    normal = drawn(seed)
    matrices = [normal(rows, columns, scale=columns**-0.5) * (1 + number) for number in range(EXPERTS)]
    singles = [nvfp4.global_scale_of(matrix) for matrix in matrices]
    values, scales = zip(*(nvfp4.quantize(m, s) for m, s in zip(matrices, singles, strict=True)), strict=True)
    return Packed(torch.stack(values), torch.stack(scales), torch.stack(singles))


@pytest.fixture(scope="module")
def up_gate() -> Packed:
    """b12x's order: up above gate, under one float32 scale."""
    return packed(21, 2 * INNER, HIDDEN)


@pytest.fixture(scope="module")
def down() -> Packed:
    return packed(22, HIDDEN, INNER)


def mixture(up_gate: Packed, down: Packed, *, through_csf: bool) -> Mixture:
    """Ours: gate above up, and a shared expert of nothing."""
    upper, lower = up_gate.restored(through_csf=through_csf).chunk(2, dim=1)
    return Mixture(
        router=drawn(23)(EXPERTS, HIDDEN, scale=0.05),
        gate_up=torch.cat([lower, upper], dim=1),
        down=down.restored(through_csf=through_csf),
        shared_gate_up=torch.zeros(2 * INNER, HIDDEN),
        shared_down=torch.zeros(HIDDEN, INNER),
        shared_gate=torch.zeros(1, HIDDEN),
        top=TOP,
    )


def routed(x: Tensor, router: Tensor) -> tuple[Tensor, Tensor]:
    """Ids int64 and weights float32 [R, TOP]: softmax, the best, renormalised."""
    weights, ids = torch.topk(torch.softmax(x @ router.t(), dim=-1), TOP)
    return ids, weights / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize("through_csf", [True, False], ids=["csf", "plain"])
def test_plain_activations(up_gate: Packed, down: Packed, through_csf: bool) -> None:
    """W4A16, the target's by default and the drafter's always: measured 6e-7."""
    theirs, intrinsics = b12x_references.experts(), b12x_references.intrinsics()
    ours, x = mixture(up_gate, down, through_csf=through_csf), drawn(24)(ROWS, HIDDEN)
    wanted = theirs.moe_reference_w4a16_f32(
        x,
        up_gate.values,
        up_gate.swizzled(intrinsics),
        up_gate.single,
        down.values,
        down.swizzled(intrinsics),
        down.single,
        *routed(x, ours.router),
        EXPERTS,
        HIDDEN,
        INNER,
    )
    assert float(relative_l2(wanted, ours(x)).max()) < FLOAT


@pytest.mark.parametrize("unit", [2.0**-8, 0.00123], ids=["power of two", "any"])
def test_rounded_activations(up_gate: Packed, down: Packed, unit: float) -> None:
    """W4A4, a scale for each expert's input, one for its inner values, some beyond its range: measured 2e-7."""
    theirs, intrinsics = b12x_references.experts(), b12x_references.intrinsics()
    plain, x = mixture(up_gate, down, through_csf=True), drawn(25)(ROWS, HIDDEN)
    factors = 2.0 ** (torch.arange(EXPERTS) % 3)
    scales = InputScales(unit * factors, 4 * unit * factors.flip(0))
    ours = replace(plain, input_scales=scales)
    wanted = theirs.moe_reference_f32(
        x,
        up_gate.values,
        up_gate.swizzled(intrinsics),
        up_gate.single * scales.gate_up,
        down.values,
        down.swizzled(intrinsics),
        down.single * scales.down,
        1 / scales.gate_up,
        1 / scales.down,
        *routed(x, ours.router),
        EXPERTS,
        HIDDEN,
        INNER,
    )
    found = relative_l2(wanted, ours(x))
    assert int((found >= FLOAT).sum()) <= ROWS // 8
    assert float(found.max()) < STEP
    assert float(relative_l2(wanted, plain(x)).min()) > 2 * STEP  # what leaving the rounding out would make


@pytest.mark.parametrize("unit", [2.0**-8, 0.00123], ids=["power of two", "any"])
def test_b12x_rounds_activations_as_two_others_do(unit: float) -> None:
    """Ours, ml_dtypes and b12x: bit for bit under a scale that divides exactly, apart in ties alone under any."""
    theirs = b12x_references.experts()
    x = drawn(26)(64, HIDDEN) * torch.logspace(-3, 2, 64)[:, None]
    scale = torch.tensor(unit)
    wanted = torch.stack(
        [theirs._quantize_vec_to_fp4_dequant(row, 1 / unit, block_size=16, fp8_e4m3_max=448.0) for row in x]
    )
    found = rounded(x, scale)
    assert torch.equal(found, rounded_by_ml_dtypes(x, scale))
    same = torch.isclose(found, wanted * scale, rtol=1e-6, atol=0)
    assert bool(same.all()) if unit == 2.0**-8 else float(same.float().mean()) > 0.9999
