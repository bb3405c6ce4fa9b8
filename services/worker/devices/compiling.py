"""All kernels of a core compiled side by side, before its rounds run for the first time.

Runs once, in the launch thread of a worker on a GPU. The rounds are gone through without a kernel being run: a launch
only asks for it, in Triton's asynchronous mode, whose threads hold the interpreter's lock for little of their time.
What kernels would have filled is zero meanwhile, so that operations of torch between them find usable indices.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_THREADS = 16
_ZEROED: dict[Any, Any] = {
    torch.empty: torch.zeros,
    torch.empty_like: torch.zeros_like,
    torch.Tensor.new_empty: torch.Tensor.new_zeros,
}

_asking: ContextVar[bool] = ContextVar("asking", default=False)


def only_asked() -> bool:
    """Whether rounds only ask for their kernels now: what waits for a kernel's work would wait for ever."""
    return _asking.get()


class _Zeroed(TorchFunctionMode):
    """Inside, new tensors hold zeros."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _ZEROED.get(func, func)(*args, **(kwargs or {}))


def compile_kernels(rounds: Iterable[Callable[[], object]]) -> None:
    """Compiles whatever `rounds` launch, on as many cores as there are. They may change any state of theirs.

    Raises what a compilation raises.
    """
    from triton.runtime._async_compile import AsyncCompileMode

    cores = min(_THREADS, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(cores, "compile") as pool, _asked_for(), AsyncCompileMode(pool), _Zeroed():
        for one in rounds:
            one()


@contextmanager
def _asked_for() -> Iterator[None]:
    """Inside, a launch asks for its kernel once and does nothing else. Triton's own way of telling kernels apart."""
    from triton import knobs
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction, compute_cache_key

    original = JITFunction.run
    asked: set[tuple[Any, str]] = set()

    def ask(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        known, keys, _, _, binder = self.device_caches[driver.active.get_current_device()]
        named = kwargs | {
            "debug": kwargs.get("debug", self.debug) or knobs.runtime.debug,
            "instrumentation_mode": knobs.compilation.instrumentation_mode,
        }
        _, specialization, options = binder(*args, **named)
        key = compute_cache_key(keys, specialization, options)
        if key not in known and (self, key) not in asked:
            asked.add((self, key))
            original(self, *args, grid=grid, warmup=True, **kwargs)

    JITFunction.run, token = ask, _asking.set(True)
    try:
        yield
    finally:
        JITFunction.run = original
        _asking.reset(token)
