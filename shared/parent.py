"""A process that ends when the one that started it does: the kernel sees to it. Imported by every process."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def prctl(option: int, value: int) -> None:
    """Of this process, or of this thread alone. Raises `OSError`."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def end_with(parent: int, number: signal.Signals) -> None:
    """Asks the kernel for signal `number` when the thread of `parent` that started this process ends.

    Exits at once when that process is dead already. Raises `OSError`.
    """
    prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        raise SystemExit(1)
