"""The shape of a Llama-family model, and the tensors a checkpoint of it must hold under canonical names.

Pure data: the readers of both checkpoint formats, the weights and the target follow from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, TypeVar

import msgspec

from recipes.components.paged_attention import Heads
from shared.errors import CheckpointError

WeightFormat = Literal["int8", "float32"]
_Type = TypeVar("_Type")


class Architecture(msgspec.Struct, frozen=True):
    """Sizes and constants of the model. `tied`: the head is the embedding table."""

    vocab_size: int
    hidden_size: int
    layers: int
    query_heads: int
    key_heads: int
    head_size: int
    intermediate_size: int
    context_length: int
    rope_theta: float
    norm_epsilon: float
    tied: bool

    @property
    def heads(self) -> Heads:
        """Head counts as the attention operator takes them."""
        return Heads(self.query_heads, self.key_heads, self.head_size)

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Canonical name to shape of every tensor of the checkpoint."""
        hidden, inner = self.hidden_size, self.intermediate_size
        queries, keys = self.query_heads * self.head_size, self.key_heads * self.head_size
        found: dict[str, tuple[int, ...]] = {"embedding": (self.vocab_size, hidden), "norm": (hidden,)}
        if not self.tied:
            found["head"] = (self.vocab_size, hidden)
        for layer in range(self.layers):
            found |= {
                f"layers.{layer}.attention_norm": (hidden,),
                f"layers.{layer}.query": (queries, hidden),
                f"layers.{layer}.key": (keys, hidden),
                f"layers.{layer}.value": (keys, hidden),
                f"layers.{layer}.output": (hidden, queries),
                f"layers.{layer}.mlp_norm": (hidden,),
                f"layers.{layer}.gate": (inner, hidden),
                f"layers.{layer}.up": (inner, hidden),
                f"layers.{layer}.down": (hidden, inner),
            }
        return found


class Settings(msgspec.Struct, frozen=True):
    """The recipe's own part of the manifest."""

    architecture: Architecture
    weights: WeightFormat


def checked(architecture: Architecture) -> Architecture:
    """The architecture itself, if the target can run it. Raises `CheckpointError`."""
    if architecture.head_size % 2:
        raise CheckpointError(f"head size {architecture.head_size} is odd: rotary positions need pairs")
    if architecture.query_heads % architecture.key_heads:
        raise CheckpointError(f"{architecture.query_heads} query heads do not divide among {architecture.key_heads}")
    return architecture


def required(source: Mapping[str, object], name: str, kind: type[_Type]) -> _Type:
    """A value that the checkpoint's metadata must hold, as `kind`. Raises `CheckpointError`."""
    value = source.get(name)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise CheckpointError(f"the checkpoint's {name} is {value!r}, not a {kind.__name__}")
    return value


def check_tensors(found: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]]) -> None:
    """Raises one `CheckpointError` that names every missing, surplus and misshapen tensor."""
    wrong = [
        f"{name} is {list(found[name])}, not {list(shape)}"
        for name, shape in wanted.items()
        if name in found and found[name] != shape
    ]
    faults = [
        _listed("missing", wanted.keys() - found.keys()),
        _listed("surplus", found.keys() - wanted.keys()),
        _listed("wrong shape", wrong),
    ]
    if any(faults):
        raise CheckpointError("; ".join(fault for fault in faults if fault))


def _listed(what: str, names: Iterable[str]) -> str:
    ordered = sorted(names)
    shown = ", ".join(ordered[:8]) + (f" and {len(ordered) - 8} more" if len(ordered) > 8 else "")
    return f"{what}: {shown}" if ordered else ""
