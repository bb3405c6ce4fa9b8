"""Whether there is a card, and what follows for Triton: where there is none, its kernels are interpreted."""

from __future__ import annotations

import ctypes
import os
from importlib import import_module
from importlib.util import find_spec


def gpus() -> int:
    """How many GPUs the driver shows; none without a driver."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


def interpret_without_a_card() -> None:
    """Makes the first import of Triton in this process, which decides about its library once and for all.

    Each kernel's module decides for itself when it is imported: `places.py` sees to that. Without Triton: nothing.
    """
    if gpus() or not find_spec("triton"):
        return
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"
    import_module("triton.language")
    if before is None:
        del os.environ["TRITON_INTERPRET"]
