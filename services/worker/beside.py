"""Processes beside a worker: the kernel ends them when the worker ends. Imports no torch."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def prctl(option: int, value: int) -> None:
    """Of this process, or of this thread alone. Raises `OSError`."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def end_with(parent: int) -> None:
    """This process is killed when the thread of `parent` that started it ends, even while stopped; now if it has."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit(1)
