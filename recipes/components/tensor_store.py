"""Tensors of safetensors files by name, read one at a time; and their copying into another file, payload by payload.

Runs in `ignition` and in the worker while it loads. Nothing is mapped for long and nothing is held: a checkpoint may
be far larger than memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from recipes.components.safetensors_headers import Entry, Located, encode_header
from shared.errors import CheckpointError

_TYPES = {
    "BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "U8": torch.uint8, "I64": torch.int64,
    "U32": torch.uint32, "F8_E4M3": torch.float8_e4m3fn,
}  # fmt: skip
_PIECE = 64 << 20


@dataclass(frozen=True, slots=True)
class TensorStore:
    """Where each tensor lies."""

    located: Mapping[str, Located]

    def tensor(self, name: str) -> Tensor:
        """One tensor as it is stored. Raises `CheckpointError` for an unknown name or a file that ends too soon."""
        found = self.located.get(name)
        if found is None:
            raise CheckpointError(f"there is no tensor {name}")
        entry = found.entry
        with found.file.open("rb") as opened:
            opened.seek(found.offset)
            payload = bytearray(opened.read(entry.nbytes))
        if len(payload) != entry.nbytes:
            raise CheckpointError(f"{found.file.name} ends before {name} does")
        if not payload:
            return torch.empty(entry.shape, dtype=_TYPES[entry.dtype])
        return torch.frombuffer(payload, dtype=torch.uint8).view(_TYPES[entry.dtype]).view(entry.shape)

    def __contains__(self, name: str) -> bool:
        return name in self.located


def nbytes(located: Mapping[str, Located]) -> int:
    """Bytes of their payloads together."""
    return sum(found.entry.nbytes for found in located.values())


def save_tensors(tensors: dict[str, Tensor], target: Path) -> None:
    """Writes one file. Raises `CheckpointError` naming it, for instance if the disk is full."""
    target.touch()
    mode = target.stat().st_mode
    try:
        save_file(tensors, target)
        target.chmod(mode)  # the library replaces it by one that its owner alone may read
    except SafetensorError as error:
        raise CheckpointError(f"{target}: {error}") from error


def copy_tensors(located: Mapping[str, Located], target: Path, advanced: Callable[[int], None]) -> None:
    """Writes the tensors, as they are stored, into one new file; `advanced` is told of each tensor's bytes.

    The kernel copies between the files, without this process reading them, where the file system can.
    """
    entries, end = {}, 0
    for name, found in located.items():
        entries[name] = Entry(found.entry.dtype, found.entry.shape, (end, end + found.entry.nbytes))
        end += found.entry.nbytes
    with target.open("wb") as written:
        written.write(encode_header(entries))
        written.flush()
        for found in located.values():
            with found.file.open("rb") as source:
                _copy(source.fileno(), found.offset, written.fileno(), found.entry.nbytes)
            advanced(found.entry.nbytes)


def _copy(source: int, offset: int, target: int, count: int) -> None:
    while count:
        copied = os.copy_file_range(source, target, min(count, _PIECE), offset)
        if copied == 0:
            raise CheckpointError("a checkpoint file ends before its tensors do")
        offset += copied
        count -= copied
