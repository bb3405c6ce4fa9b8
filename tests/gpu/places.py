"""Where an operator's test runs: Triton's interpreter on a machine without a card, the card with `-m gpu`.

Inputs are made on the CPU and rounded to the type of the place, so that the reference sees the same numbers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any, TypeVar, cast

import numpy as np
import pytest
import torch
from torch import Tensor

_Any = TypeVar("_Any")


@dataclass(frozen=True, slots=True)
class Place:
    """A device, the type of its weights and pages, and the error that rounding to that type allows."""

    device: torch.device
    dtype: torch.dtype
    tolerance: float
    """Of ||found - wanted|| / ||wanted||: two roundings of 2^-9 each on the way and one at the end, with room."""

    def take(self, value: _Any) -> _Any:
        """`value` on this device: tensors as they are, and dataclasses of them."""
        if isinstance(value, Tensor):
            return cast(_Any, value.to(self.device))
        if is_dataclass(value) and not isinstance(value, type):
            plain = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
            moved = {name: self.take(part) for name, part in plain.items() if isinstance(part, Tensor)}
            return cast(_Any, replace(value, **moved))
        return value

    def rounded(self, value: Tensor) -> Tensor:
        """`value` rounded to this place's type, on the CPU in float32."""
        return value.to(self.dtype).float()

    def run(self, operator: Callable[..., Any], *arguments: Any) -> Any:
        """What `operator` gives here, on the CPU."""
        with _kernels(self.device):
            found = operator(*(self.take(argument) for argument in arguments))
        return found.cpu() if isinstance(found, Tensor) else found

    def typed(self, value: Tensor) -> Tensor:
        """`value` in this place's type."""
        return value.to(self.dtype)


@contextmanager
def _kernels(device: torch.device) -> Iterator[None]:
    """Operators take their kernels inside; outside, on a CPU, their references."""
    before = os.environ.get("TRITON_INTERPRET")
    if device.type == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("TRITON_INTERPRET", None)
        else:
            os.environ["TRITON_INTERPRET"] = before


def interpreter() -> Place:
    """The interpreter, or a skip with its reason. Its bfloat16 is wrong, so all is float32."""
    if torch.cuda.is_available():
        pytest.skip("kernels are compiled in this process; their interpreter is for machines without a card")
    with _kernels(torch.device("cpu")):
        runtime = pytest.importorskip("triton.runtime.interpreter", reason="Triton is not installed")
        _mend_scalars(runtime)
        _patch_once(runtime)
        _let_junk_be(runtime)
    return Place(torch.device("cpu"), torch.float32, 2e-6)


def card() -> Place:
    """The card, in bfloat16."""
    return Place(torch.device("cuda"), torch.bfloat16, 8e-3)


def _mend_scalars(runtime: Any) -> None:
    """NumPy 2.4 refuses to make a number of an array of one element, which is what loop bounds are here."""
    original = runtime._patch_lang_tensor
    if getattr(original, "mended", False):
        return

    def patch(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    patch.mended = True  # type: ignore[attr-defined]
    runtime._patch_lang_tensor = patch


def _patch_once(runtime: Any) -> None:
    """Lets a kernel's functions run on what its launch has patched: again for each call, it takes most of the time."""
    original = runtime._patch_lang
    if getattr(original, "once", False):
        return
    patched: set[Any] = set()

    @cache
    def modules(file: str) -> set[Any]:
        known = (runtime.tl, runtime.tl.core)
        return {value for value in vars(sys.modules[file]).values() if any(value is module for module in known)}

    def patch(function: Any) -> Any:
        own = modules(function.__globals__["__name__"])
        if own <= patched:
            return runtime._LangPatchScope()
        scope = original(function)
        patched.update(own)
        restore = scope.restore

        def restored() -> None:  # of the launch alone: functions that it calls restore nothing
            restore()
            patched.clear()

        scope.restore = restored
        return scope

    patch.once = True  # type: ignore[attr-defined]
    runtime._patch_lang = patch


def _let_junk_be(runtime: Any) -> None:
    """Lets a launch compute with what nobody wrote, as a card does: kernels throw the outcome away. numpy would warn.

    What lies in memory then, a signalling NaN now and again, is chance.
    """
    launch = runtime.GridExecutor.__call__
    if getattr(launch, "unheeding", False):
        return

    def unheeding(self: Any, *arguments: Any, **named: Any) -> Any:
        with np.errstate(all="ignore"):
            return launch(self, *arguments, **named)

    unheeding.unheeding = True  # type: ignore[attr-defined]
    runtime.GridExecutor.__call__ = unheeding


def distance(found: Tensor, wanted: Tensor) -> float:
    """||found - wanted|| / ||wanted|| in float64; NaN if either holds one."""
    error = (found.double() - wanted.double()).norm()
    return float(error / wanted.double().norm().clamp_min(1e-30))
