"""Rounds that only ask for their kernels: they know it, find zeros where kernels would have written, and fail aloud."""

from __future__ import annotations

import pytest
import torch

from services.worker.devices.compiling import compile_kernels, only_asked

pytest.importorskip("triton", reason="Triton is not installed")


def test_a_round_that_only_asks_knows_it_and_finds_zeros() -> None:
    seen: list[bool] = []

    def rounds() -> None:
        seen.append(only_asked())
        like = torch.ones(64)
        for made in (torch.empty(64), torch.empty_like(like), like.new_empty(64)):
            assert not made.any()

    compile_kernels([rounds, rounds])
    assert seen == [True, True]
    assert not only_asked()


def test_what_a_round_raises_is_raised_and_nothing_stays_patched() -> None:
    from triton.runtime.jit import JITFunction

    before = JITFunction.run

    def rounds() -> None:
        raise ValueError("no such shape")

    with pytest.raises(ValueError, match="no such shape"):
        compile_kernels([rounds])
    assert JITFunction.run is before
    assert not only_asked()
