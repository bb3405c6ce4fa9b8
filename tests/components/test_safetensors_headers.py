"""Headers of safetensors files: read as the library writes them, refused when they do not describe their payload."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from recipes.components.safetensors_headers import Entry, encode_header, read_header, survey
from recipes.components.tensor_store import save_tensors
from shared.errors import CheckpointError


def raw(path: Path, header: object, payload: bytes = b"") -> Path:
    body = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(body).to_bytes(8, "little") + body + payload)
    return path


def test_what_the_library_writes_is_found_where_it_lies(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(6, dtype=torch.int64).view(2, 3), "b": torch.ones(5).to(torch.float8_e4m3fn)}
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    found = survey([tmp_path / "x.safetensors"])
    assert found["a"].entry.shape == (2, 3)
    assert found["b"].entry.dtype == "F8_E4M3"
    located = found["a"]
    data = located.file.read_bytes()[located.offset : located.offset + located.entry.nbytes]
    assert data == bytes(tensors["a"].numpy().tobytes())


def test_what_is_written_may_be_read_by_those_who_may_read_any_other_file(tmp_path: Path) -> None:
    save_tensors({"a": torch.zeros(1)}, tmp_path / "x.safetensors")
    (tmp_path / "other").touch()
    assert (tmp_path / "x.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_an_encoded_header_is_read_back_with_holes_for_payload(tmp_path: Path) -> None:
    entries = {"w": Entry("U8", (1 << 20, 4), (0, 1 << 22)), "x": Entry("U32", (0,), (1 << 22, 1 << 22))}
    header = encode_header(entries)
    path = tmp_path / "x.safetensors"
    path.write_bytes(header)
    with path.open("r+b") as opened:
        opened.truncate(len(header) + (1 << 22))
    assert read_header(path) == (entries, len(header))


@pytest.mark.parametrize(
    ("header", "payload"),
    [
        ({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"1234"),
        ({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"123456789"),
        ({"w": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}, b"12345678"),
        ({"w": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}, b"123456789012"),
        ({"w": {"dtype": "F99", "shape": [2], "data_offsets": [0, 8]}}, b"12345678"),
        ({"w": {"dtype": "F32", "shape": [2]}}, b""),
        (b"[]", b""),
        (b"{broken", b""),
    ],
    ids=["cut short", "too long", "shape", "gap", "type", "no offsets", "no object", "no JSON"],
)
def test_a_header_that_does_not_describe_its_file_is_refused(tmp_path: Path, header: object, payload: bytes) -> None:
    with pytest.raises(CheckpointError):
        read_header(raw(tmp_path / "x.safetensors", header, payload))


def test_a_name_in_two_files_and_a_folder_without_files_are_refused(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "1.safetensors")
    save_file({"a": torch.ones(1)}, tmp_path / "2.safetensors")
    with pytest.raises(CheckpointError, match="both"):
        survey(tmp_path.glob("*.safetensors"))
    with pytest.raises(CheckpointError):
        survey([])
