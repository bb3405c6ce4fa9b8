"""Whether there is a card, and what follows for Triton: where there is none, its kernels are interpreted."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec

from shared.cuda_driver import visible_gpus


def interpret_without_a_card() -> None:
    """Makes the first import of Triton in this process, which decides about its library once and for all.

    Each kernel's module decides for itself when it is imported: `places.py` sees to that. Without Triton: nothing.
    """
    if visible_gpus() or not find_spec("triton"):
        return
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"
    import_module("triton.language")
    if before is None:
        del os.environ["TRITON_INTERPRET"]
