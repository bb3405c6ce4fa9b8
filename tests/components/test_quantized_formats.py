"""NVFP4 and MXFP8: bytes mean what the formats say, and rounding goes to the nearest value."""

from __future__ import annotations

import torch

from recipes.components import mxfp8, nvfp4


def test_all_sixteen_codes_have_their_values_and_the_even_column_is_the_low_nibble() -> None:
    packed = torch.tensor([[0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]], dtype=torch.uint8)
    wanted = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert nvfp4.unpack(packed)[0].tolist() == wanted + [-value for value in wanted]


def test_a_value_is_code_times_block_scale_times_global_scale() -> None:
    packed = torch.full((1, 16), 0x72, dtype=torch.uint8)
    scales = torch.tensor([[2.0, 0.5]]).to(torch.float8_e4m3fn)
    found = nvfp4.dequantize(packed, scales, torch.tensor(0.25))
    assert found[0].tolist() == [1.0 * 2 * 0.25, 6.0 * 2 * 0.25] * 8 + [1.0 * 0.5 * 0.25, 6.0 * 0.5 * 0.25] * 8


def test_rounding_is_to_the_nearest_and_half_way_to_even() -> None:
    values = torch.tensor([0.24, 0.25, 0.26, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 5.1, 99.0, -0.75])
    wanted = [0.0, 0.0, 0.5, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0, 6.0, -1.0]
    table = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    codes = nvfp4.round_to_e2m1(values).long()
    assert (table[codes & 7] * torch.where(codes > 7, -1.0, 1.0)).tolist() == wanted


def test_what_is_stored_exactly_survives_both_ways() -> None:
    generator = torch.Generator().manual_seed(1)
    matrix = torch.randn(32, 64, generator=generator)
    single = nvfp4.global_scale_of(matrix)
    once = nvfp4.dequantize(*nvfp4.quantize(matrix, single), single)
    again = nvfp4.dequantize(*nvfp4.quantize(once, single), single)
    torch.testing.assert_close(again, once, rtol=0, atol=0)
    assert float((once - matrix).norm() / matrix.norm()) < 0.12
    first = mxfp8.dequantize(*mxfp8.quantize(matrix))
    torch.testing.assert_close(mxfp8.dequantize(*mxfp8.quantize(first)), first, rtol=0, atol=0)
    assert float((first - matrix).norm() / matrix.norm()) < 0.04


def test_mxfp8_scales_are_powers_of_two_biased_by_127() -> None:
    values = torch.ones(1, 64).to(torch.float8_e4m3fn)
    scales = torch.tensor([[127, 130]], dtype=torch.uint8)
    assert mxfp8.dequantize(values, scales)[0].tolist() == [1.0] * 32 + [8.0] * 32
