"""What both checkpoint formats give an export: architecture, tensors, tokenizer and generation defaults.

Runs in `ignition` only. `open_checkpoint` decides by what lies at the path.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from torch import Tensor

from recipes.components.core_folder import TextSide
from recipes.smollm2.architecture import Architecture
from shared.errors import CheckpointError


class Checkpoint(Protocol):
    """A validated checkpoint. Query and key rows come with rotary pairs side by side."""

    @property
    def model_name(self) -> str: ...

    @property
    def architecture(self) -> Architecture: ...

    def tensor(self, name: str) -> Tensor:
        """The tensor of a canonical name (`Architecture.tensors`), float32."""
        ...

    def text_side(self) -> TextSide:
        """Tokenizer and generation defaults. Raises `CheckpointError`."""
        ...


def open_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint at `path`, every tensor's name and shape checked. Raises `CheckpointError`."""
    from recipes.smollm2.gguf_file import GgufFile
    from recipes.smollm2.safetensors_folder import SafetensorsFolder

    if path.is_dir():
        return SafetensorsFolder(path)
    if path.is_file():
        return GgufFile(path)
    raise CheckpointError(f"{path} is neither a GGUF file nor a folder with safetensors")
