"""A Hugging Face folder of a Llama-family model: config.json, tokenizer.json, safetensors in one file or in shards.

Runs in `ignition` only. Query and key rows come as two halves a head and leave with rotary pairs side by side.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from recipes.components.core_folder import TextSide
from recipes.components.rotary import pair_heads
from recipes.smollm2.architecture import Architecture, check_tensors, checked, required
from shared.errors import CheckpointError
from shared.manifest import GenerationDefaults

_NAMES = {
    "attention_norm": "input_layernorm",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_OUTER = {"embedding": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight"}
_DTYPES = frozenset({"F32", "F16", "BF16"})


def _source_name(canonical: str) -> str:
    if canonical in _OUTER:
        return _OUTER[canonical]
    _, layer, part = canonical.split(".")
    return f"model.layers.{layer}.{_NAMES[part]}.weight"


def _document(path: Path) -> dict[str, object]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, object])
    except (OSError, msgspec.MsgspecError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error


def read_architecture(config: Mapping[str, object]) -> Architecture:
    """The architecture in a `config.json`. Raises `CheckpointError` on what the target does not compute."""
    if config.get("model_type") != "llama":
        raise CheckpointError(f"model_type {config.get('model_type')!r} is not of the llama family")
    for name, accepted in (
        ("hidden_act", ("silu",)),
        ("attention_bias", (False, None)),
        ("mlp_bias", (False, None)),
        ("rope_interleaved", (False, None)),
        ("quantization_config", (None,)),
    ):
        if config.get(name) not in accepted:
            raise CheckpointError(f"{name} = {config.get(name)!r} is not supported")
    # transformers 5 writes one `rope_parameters`; before, theta and scaling stood apart.
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict) or rope.get("rope_type", rope.get("type", "default")) != "default":
        raise CheckpointError(f"rope scaling {rope!r} is not supported")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise CheckpointError("rotary positions on a part of each head are not supported")
    hidden = required(config, "hidden_size", int)
    queries = required(config, "num_attention_heads", int)
    return checked(
        Architecture(
            vocab_size=required(config, "vocab_size", int),
            hidden_size=hidden,
            layers=required(config, "num_hidden_layers", int),
            query_heads=queries,
            key_heads=required({"num_key_value_heads": queries} | dict(config), "num_key_value_heads", int),
            head_size=required(config, "head_dim", int) if config.get("head_dim") else hidden // queries,
            intermediate_size=required(config, "intermediate_size", int),
            context_length=required(config, "max_position_embeddings", int),
            rope_theta=required({"rope_theta": 10000.0} | dict(config) | rope, "rope_theta", float),
            norm_epsilon=required(config, "rms_norm_eps", float),
            tied=bool(config.get("tie_word_embeddings", False)),
        )
    )


class SafetensorsFolder:
    """One folder. Tensors are read when asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._config = _document(path / "config.json")
        self.model_name = path.resolve().name
        self.architecture = read_architecture(self._config)
        self._files: dict[str, Path] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        for file in sorted(path.glob("*.safetensors")):
            self._survey(file, shapes)
        check_tensors(shapes, {_source_name(name): shape for name, shape in self.architecture.tensors().items()})

    def _survey(self, file: Path, shapes: dict[str, tuple[int, ...]]) -> None:
        try:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118  (not a dict: it has no iterator)
                    part = opened.get_slice(name)
                    if name in self._files:
                        raise CheckpointError(f"{name} is in both {self._files[name].name} and {file.name}")
                    if part.get_dtype() not in _DTYPES:
                        raise CheckpointError(f"{name} is {part.get_dtype()}, not one of {sorted(_DTYPES)}")
                    self._files[name] = file
                    shapes[name] = tuple(part.get_shape())
        except SafetensorError as error:
            raise CheckpointError(f"cannot read {file}: {error}") from error

    def tensor(self, name: str) -> Tensor:
        """The tensor in float32, query and key rows paired."""
        source = _source_name(name)
        with safe_open(self._files[source], framework="pt") as opened:
            found: Tensor = opened.get_tensor(source).to(torch.float32)
        part = name.rsplit(".", 1)[-1]
        if part in ("query", "key"):
            heads = self.architecture.query_heads if part == "query" else self.architecture.key_heads
            found = pair_heads(found, heads)
        return found

    def text_side(self) -> TextSide:
        """Tokenizer files as they are, end tokens and sampling defaults of generation_config.json, if there is one."""
        generation_file = self._path / "generation_config.json"
        generation = _document(generation_file) if generation_file.exists() else {}
        config = _document(self._path / "tokenizer_config.json")
        template = self._path / "chat_template.jinja"
        if template.exists():
            config["chat_template"] = template.read_text(encoding="utf-8")
        ends = generation.get("eos_token_id", self._config.get("eos_token_id"))
        try:
            end_ids = tuple(msgspec.convert([ends] if isinstance(ends, int) else ends or [], list[int]))
            values = {name: value for name, value in generation.items() if value is not None}
            defaults = msgspec.convert(values, GenerationDefaults)
            tokenizer = (self._path / "tokenizer.json").read_text(encoding="utf-8")
        except (msgspec.ValidationError, OSError) as error:
            raise CheckpointError(f"{self._path}: {error}") from error
        return TextSide(tokenizer, config, end_ids, defaults)
