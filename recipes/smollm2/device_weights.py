"""The weights of a core on a device, in its own type: int8 layers are exact in bfloat16 and keep their scales.

Rounds of this model are too short for int8 to save what widening it costs (docs/log.md). Runs in the worker, and with
random weights of any geometry in benchmarks: a forward's time depends on no value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from recipes.components.gpu.linear import Weight
from recipes.components.int8_linear import quantise_channels
from recipes.smollm2.architecture import Architecture, WeightFormat
from recipes.smollm2.weights import FILE
from shared.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class DeviceLayer:
    """One block. `input` gives queries, keys and values side by side; `gate_up` the gate, then the rest."""

    attention_norm: Tensor
    input: Weight
    output: Weight
    mlp_norm: Tensor
    gate_up: Weight
    down: Weight


@dataclass(frozen=True, slots=True)
class DeviceWeights:
    """The whole model. `embedding` [V, hidden]; norms float32."""

    embedding: Tensor
    layers: tuple[DeviceLayer, ...]
    norm: Tensor
    head: Weight

    @property
    def read_bytes(self) -> int:
        """Bytes that one decoding round must read at least once: everything but the embedding table."""
        matrices = [self.head]
        for layer in self.layers:
            matrices += [layer.input, layer.output, layer.gate_up, layer.down]
        return sum(matrix.values.nbytes + (0 if matrix.scale is None else matrix.scale.nbytes) for matrix in matrices)


def read_device_weights(
    core: Path, architecture: Architecture, form: WeightFormat, device: torch.device, dtype: torch.dtype
) -> DeviceWeights:
    """The weights of a core folder on `device`. Raises `CheckpointError`."""
    try:
        with safe_open(core / FILE, framework="pt") as opened:

            def weight(name: str) -> Weight:
                values = opened.get_tensor(f"{name}.weight").to(device, dtype)
                return Weight(values, None if form == "float32" else opened.get_tensor(f"{name}.scale").to(device))

            def vector(name: str) -> Tensor:
                found: Tensor = opened.get_tensor(name)
                return found.float().to(device)

            return _assemble(architecture, weight, vector, opened.get_tensor("embedding").to(device, dtype))
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"cannot read {core / FILE}: {error}") from error


def random_device_weights(
    architecture: Architecture, form: WeightFormat, device: torch.device, dtype: torch.dtype, seed: int = 0
) -> DeviceWeights:
    """Seeded weights of this geometry, scaled so that the stream neither vanishes nor overflows."""
    shapes = architecture.tensors()
    shapes.setdefault("head", shapes["embedding"])
    source = torch.Generator(device).manual_seed(seed)

    def drawn(name: str) -> Tensor:
        inner = shapes[name][-1]
        found: Tensor = torch.randn(shapes[name], generator=source, device=device).mul_(inner**-0.5)
        return found

    def weight(name: str) -> Weight:
        outer, _, part = name.rpartition(".")
        parts = {"input": ("query", "key", "value"), "gate_up": ("gate", "up")}.get(part, (part,))
        values = torch.cat([drawn(f"{outer}.{own}" if outer else own) for own in parts])
        return Weight(values.to(dtype)) if form == "float32" else Weight(*quantise_channels(values))

    def vector(name: str) -> Tensor:
        return torch.ones(shapes[name], device=device)

    return _assemble(architecture, weight, vector, drawn("embedding").to(dtype))


def _assemble(
    architecture: Architecture, weight: Callable[[str], Weight], vector: Callable[[str], Tensor], embedding: Tensor
) -> DeviceWeights:
    layers = tuple(
        DeviceLayer(
            attention_norm=vector(f"layers.{layer}.attention_norm"),
            input=weight(f"layers.{layer}.input"),
            output=weight(f"layers.{layer}.output"),
            mlp_norm=vector(f"layers.{layer}.mlp_norm"),
            gate_up=weight(f"layers.{layer}.gate_up"),
            down=weight(f"layers.{layer}.down"),
        )
        for layer in range(architecture.layers)
    )
    return DeviceWeights(embedding=embedding, layers=layers, norm=vector("norm"), head=weight("head"))
