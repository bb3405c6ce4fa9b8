"""Headers of safetensors files: what a checkpoint holds, known before a byte of its payload is read.

Runs in `ignition`. The format: eight bytes of little-endian header length, a JSON object, then the payload; offsets
count from the payload's first byte. The library's own reader maps a file and looks tensors up one by one, which takes
minutes for the 400,000 tensors of a large mixture of experts; here a file's header is decoded once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import msgspec

from shared.errors import CheckpointError

MAXIMUM_HEADER = 100 << 20
"""The format's own bound, in bytes."""

BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "U16": 16, "I16": 16, "F16": 16, "BF16": 16,
    "U32": 32, "I32": 32, "F32": 32, "U64": 64, "I64": 64, "F64": 64,
}  # fmt: skip
"""Bits of one element by the format's name of its type."""


class Entry(msgspec.Struct, frozen=True):
    """One tensor of a header. `data_offsets` are the first byte of its payload and the one after its last."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]

    @property
    def nbytes(self) -> int:
        """Bytes of the payload."""
        return self.data_offsets[1] - self.data_offsets[0]


@dataclass(frozen=True, slots=True)
class Located:
    """A tensor and the file that holds it; `offset` is the absolute position of its first byte there."""

    file: Path
    entry: Entry
    offset: int


def read_header(file: Path) -> tuple[dict[str, Entry], int]:
    """The tensors of one file and where its payload begins. Raises `CheckpointError` for anything out of form."""
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if not 2 <= length <= MAXIMUM_HEADER:
                raise CheckpointError(f"{file.name} is no safetensors file: its header would have {length} bytes")
            header = opened.read(length)
        size = file.stat().st_size
        raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        entries = {name: msgspec.json.decode(value, type=Entry) for name, value in raw.items()}
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CheckpointError(f"cannot read the header of {file.name}: {error}") from error
    _check_payload(file, entries, size - 8 - length)
    return entries, 8 + length


def _check_payload(file: Path, entries: Mapping[str, Entry], payload: int) -> None:
    """Each tensor has the bytes that its shape needs, and together they fill the payload without gap or overlap."""
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        bits = BITS.get(entry.dtype)
        if bits is None:
            raise CheckpointError(f"{name} in {file.name} has the unknown type {entry.dtype}")
        if entry.data_offsets[0] != end or entry.nbytes * 8 != bits * prod(entry.shape):
            raise CheckpointError(f"{name} in {file.name} lies at {entry.data_offsets}, which its shape does not fill")
        end = entry.data_offsets[1]
    if end != payload:
        raise CheckpointError(f"{file.name} has {payload} bytes of payload, its header says {end}: is it cut short?")


def survey(files: Iterable[Path]) -> dict[str, Located]:
    """Every tensor of a checkpoint by name. Raises `CheckpointError`, also for a name that two files hold."""
    found: dict[str, Located] = {}
    for file in sorted(files):
        entries, payload = read_header(file)
        for name, entry in entries.items():
            if name in found:
                raise CheckpointError(f"{name} is in both {found[name].file.name} and {file.name}")
            found[name] = Located(file, entry, payload + entry.data_offsets[0])
    if not found:
        raise CheckpointError("the checkpoint holds no safetensors file")
    return found


def encode_header(entries: Mapping[str, Entry]) -> bytes:
    """Length and header of a file that holds these tensors; padded so that the payload begins at a multiple of 8."""
    body = msgspec.json.encode(dict(entries))
    body += b" " * (-len(body) % 8)
    return len(body).to_bytes(8, "little") + body
