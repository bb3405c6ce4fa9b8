"""Where an operator runs, and how its kernels follow one another.

Runs in the worker. Every operator of this package has a torch reference beside it and takes it on a CPU; on a card, and
under Triton's interpreter (TRITON_INTERPRET=1, for tests), it takes its kernel. Triton is imported by the kernels'
modules alone, so that a machine without it can import this package.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

_ROOMY_CAPABILITIES = (9, 10)
_MULTIPROCESSORS = 132
"""Of the card that was tuned for, where there is none to ask."""
_CHAINED_CAPABILITY = 9
"""From this compute capability on a kernel may start while the one before it still runs."""


def interpreted() -> bool:
    """Whether Triton interprets its kernels on the CPU. Fixed once a kernel's module has been imported."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def runs_triton(tensor: Tensor) -> bool:
    """Whether an operator on `tensor` takes its kernel."""
    return tensor.is_cuda or interpreted()


def chained(tensor: Tensor) -> bool:
    """Whether kernels start early and wait inside: weights are then fetched while the kernel before still runs.

    The rules that make this safe. Every program of such a kernel waits, also one that has nothing to do, and lets its
    successor start after its own wait only. So before its wait a kernel may read weights, which nobody writes, and
    what kernels wrote that came before its predecessor; after its wait everything.
    """
    return tensor.is_cuda and torch.cuda.get_device_capability(tensor.device)[0] >= _CHAINED_CAPABILITY


def roomy(tensor: Tensor) -> bool:
    """Whether a program may take 227 KiB of shared memory; elsewhere, as on compute capability 12, it is 99."""
    return tensor.is_cuda and torch.cuda.get_device_capability(tensor.device)[0] in _ROOMY_CAPABILITIES


def multiprocessors(tensor: Tensor) -> int:
    """How many programs that take a whole multiprocessor run side by side."""
    if not tensor.is_cuda:
        return _MULTIPROCESSORS
    return int(torch.cuda.get_device_properties(tensor.device).multi_processor_count)


def eights(measured: int) -> int:
    """Eights of outputs of a warp over packed weights: what was measured on a card.

    The interpreter pays for operations and not for their sizes, so there it is many.
    """
    return 8 if interpreted() else measured


def even_lines(matrix: Tensor) -> Tensor:
    """`matrix` [N, K] with lines of zeros behind, up to a multiple of eight: with less cuBLAS takes slow kernels."""
    return torch.nn.functional.pad(matrix, (0, 0, 0, -len(matrix) % 8))


def power_above(count: int) -> int:
    """The smallest power of two that is at least `count`."""
    return 1 << max(0, count - 1).bit_length()


def pieces_of(inner: int) -> tuple[int, int]:
    """An inner dimension in two powers of two: the second may be wider than what is left, or nothing."""
    first = power_below(inner)
    rest = inner - first
    return first, max(16, power_above(rest)) if rest else 0


def power_below(count: int) -> int:
    """The largest power of two that is at most `count`."""
    return 1 << (count.bit_length() - 1)
