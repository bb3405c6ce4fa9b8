"""CSF: what was encoded comes back, at the shapes of real checkpoints, and no damaged stream is taken for scales."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from recipes.components import csf
from shared.errors import CheckpointError


@given(arrays.arrays(np.uint8, (16, 6), elements=st.integers(0, 0x7E)))
def test_any_scales_come_back(scales: np.ndarray) -> None:
    wanted = torch.from_numpy(scales)
    assert torch.equal(csf.decode(*csf.encode(wanted), 16, 6), wanted)


@pytest.mark.parametrize(("rows", "columns", "shape"), [(640, 160, (40, 1296)), (2560, 40, (160, 336))])
def test_real_shapes_have_the_published_streams(rows: int, columns: int, shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(rows)
    scales = (torch.randn(rows, columns, generator=generator) * 5 + 0x60).clamp(0, 0x7E).to(torch.uint8)
    fixed, exceptions = csf.encode(scales)
    assert tuple(fixed.shape) == shape == csf.fixed_shape(rows, columns)
    assert 0 < len(exceptions) < scales.numel() // 4
    assert torch.equal(csf.decode(fixed, exceptions, rows, columns), scales)


def test_a_row_takes_the_lowest_of_equally_good_windows() -> None:
    scales = torch.full((16, 2), 20, dtype=torch.uint8)
    assert csf.encode(scales)[0][0, 0] == 5


@pytest.mark.parametrize("fault", ["shape", "range", "order", "not a scale"])
def test_damaged_streams_are_refused(fault: str) -> None:
    scales = torch.full((16, 4), 20, dtype=torch.uint8)
    scales[3] = torch.tensor([0, 60, 100, 20], dtype=torch.uint8)
    fixed, exceptions = csf.encode(scales)
    words = exceptions.to(torch.int64)
    if fault == "shape":
        fixed = fixed[:, :-1]
    elif fault == "range":
        words[-1] = 16 * 4
    elif fault == "order":
        words = words.flip(0)
    else:
        words[-1] |= 0xFF << 24
    with pytest.raises(CheckpointError):
        csf.decode(fixed, words.to(torch.uint32), 16, 4)
