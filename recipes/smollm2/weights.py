"""The weights of a core: fused and quantised at export, mapped at load.

`weights.safetensors` holds, for each linear layer, `NAME.weight` int8 with `NAME.scale` float32, or `NAME.weight`
float32 alone when the core was exported with float32 weights. Query, key and value are one layer, as are gate and up.
The embedding table is kept apart from the head, in bfloat16: it costs less accuracy than int8 (docs/log.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from recipes.components.int8_linear import FloatLinear, Linear, int8_linear, quantise_channels
from recipes.components.tensor_store import save_tensors
from recipes.declaration import Progress
from recipes.smollm2.architecture import Architecture, WeightFormat
from recipes.smollm2.checkpoint import Checkpoint
from shared.errors import CheckpointError

FILE = "weights.safetensors"
_FUSED = {
    "input": ("query", "key", "value"),
    "output": ("output",),
    "gate_up": ("gate", "up"),
    "down": ("down",),
}


@dataclass(frozen=True, slots=True)
class Layer:
    """One block. `input` gives queries, keys and values side by side; `gate_up` the gate, then the rest."""

    attention_norm: Tensor
    input: Linear
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class Weights:
    """The whole model. `embedding` [V, hidden] bfloat16 or float32."""

    embedding: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Linear


def write_weights(checkpoint: Checkpoint, file: Path, form: WeightFormat, progress: Progress) -> None:
    """Reads every tensor of the checkpoint once and writes the core's weights."""
    architecture = checkpoint.architecture
    found: dict[str, Tensor] = {}

    def put(name: str, weight: Tensor) -> None:
        if form == "float32":
            found[f"{name}.weight"] = weight
        else:
            found[f"{name}.weight"], found[f"{name}.scale"] = quantise_channels(weight)

    total = architecture.layers + 2
    table = checkpoint.tensor("embedding")
    put("head", table if architecture.tied else checkpoint.tensor("head"))
    found["embedding"] = table.clone() if form == "float32" else table.to(torch.bfloat16)
    found["norm"] = checkpoint.tensor("norm")
    progress("quantising" if form == "int8" else "reading", 1, total)
    for layer in range(architecture.layers):
        for name, parts in _FUSED.items():
            put(f"layers.{layer}.{name}", torch.cat([checkpoint.tensor(f"layers.{layer}.{part}") for part in parts]))
        for name in ("attention_norm", "mlp_norm"):
            found[f"layers.{layer}.{name}"] = checkpoint.tensor(f"layers.{layer}.{name}")
        progress("quantising" if form == "int8" else "reading", layer + 2, total)
    save_tensors(found, file)
    progress("writing weights", total, total)


def weight_bytes(architecture: Architecture, form: WeightFormat) -> int:
    """Bytes that `read_weights` will hold."""
    total = architecture.vocab_size * architecture.hidden_size * (4 if form == "float32" else 2)
    shapes = architecture.tensors()
    if architecture.tied:
        shapes["head"] = shapes["embedding"]
    del shapes["embedding"]
    for shape in shapes.values():
        if len(shape) == 1:
            total += shape[0] * 4
        else:
            total += shape[0] * shape[1] * 4 if form == "float32" else shape[0] * shape[1] + shape[0] * 4
    return total


def read_weights(core: Path, architecture: Architecture, form: WeightFormat, exact_products: bool) -> Weights:
    """The weights of a core folder. Raises `CheckpointError`.

    Without `exact_products` int8 layers are widened to float32: slower, the same model, not row-invariant.
    """
    try:
        with safe_open(core / FILE, framework="pt") as opened:
            return _assemble(opened.get_tensor, architecture, form, exact_products)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"cannot read {core / FILE}: {error}") from error


def _assemble(
    read: Callable[[str], Tensor], architecture: Architecture, form: WeightFormat, exact_products: bool
) -> Weights:
    def linear(name: str) -> Linear:
        weight = read(f"{name}.weight")
        if form == "float32":
            return FloatLinear(weight)
        scale = read(f"{name}.scale")
        return int8_linear(weight, scale) if exact_products else FloatLinear(weight.float() * scale[:, None])

    layers = tuple(
        Layer(
            attention_norm=read(f"layers.{layer}.attention_norm"),
            input=linear(f"layers.{layer}.input"),
            output=linear(f"layers.{layer}.output"),
            mlp_norm=read(f"layers.{layer}.mlp_norm"),
            gate_up=linear(f"layers.{layer}.gate_up"),
            down=linear(f"layers.{layer}.down"),
        )
        for layer in range(architecture.layers)
    )
    return Weights(embedding=read("embedding"), layers=layers, norm=read("norm"), head=linear("head"))
