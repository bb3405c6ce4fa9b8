"""The same weights in transformers: the judge of the target's arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from recipes.components.model import Lane, Model, rows_of
from recipes.declaration import LoadConfig
from recipes.smollm2.architecture import Architecture
from recipes.smollm2.recipe import SmolLM2
from shared.manifest import Manifest

_PARTS = {
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


def halves(weight: Tensor, heads: int) -> Tensor:
    """Rows of a query or key weight from pairs side by side to two halves a head."""
    size = weight.shape[0] // heads
    return weight.view(heads, size // 2, 2, -1).transpose(1, 2).reshape(weight.shape)


def transformers_model(shape: Architecture, tensor: Callable[[str], Tensor]) -> LlamaForCausalLM:
    """`LlamaForCausalLM` in float32 over the tensors of canonical names; embedding and head apart."""
    config = LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.query_heads,
        num_key_value_heads=shape.key_heads,
        intermediate_size=shape.intermediate_size,
        max_position_embeddings=shape.context_length,
        rms_norm_eps=shape.norm_epsilon,
        rope_parameters={"rope_theta": shape.rope_theta, "rope_type": "default"},
        tie_word_embeddings=False,
    )
    state = {"model.embed_tokens.weight": tensor("embedding"), "model.norm.weight": tensor("norm")}
    state["lm_head.weight"] = tensor("head")
    for layer in range(shape.layers):
        for part, name in _PARTS.items():
            weight = tensor(f"layers.{layer}.{part}")
            if part in ("query", "key"):
                weight = halves(weight, shape.query_heads if part == "query" else shape.key_heads)
            state[f"model.layers.{layer}.{name}.weight"] = weight
    with torch.device("meta"):
        model: Any = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    model.to_empty(device="cpu")
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    model.load_state_dict(state, strict=True)
    return cast(LlamaForCausalLM, model.float().eval())


def core_tensors(core: Path, shape: Architecture) -> Callable[[str], Tensor]:
    """The tensors of an int8 core, dequantised and unfused."""
    held = load_file(core / "weights.safetensors")
    rows = {
        "query": ("input", shape.query_heads * shape.head_size),
        "key": ("input", shape.key_heads * shape.head_size),
        "value": ("input", shape.key_heads * shape.head_size),
        "gate": ("gate_up", shape.intermediate_size),
        "up": ("gate_up", shape.intermediate_size),
    }

    def tensor(name: str) -> Tensor:
        if name in held:
            return held[name].float()
        outer, _, part = name.rpartition(".")
        fused, _ = rows.get(part, (part, 0))
        prefix = f"{outer}.{fused}" if outer else fused
        weight = held[f"{prefix}.weight"].float() * held[f"{prefix}.scale"][:, None]
        if part not in rows:
            return weight
        mates = [other for other, (where, _) in rows.items() if where == fused]
        return torch.split(weight, [rows[mate][1] for mate in mates])[mates.index(part)]

    return tensor


def load(core: Path, manifest: Manifest, deterministic: bool = False) -> Model:
    """The target of a core, as a worker loads it."""
    config = LoadConfig(deterministic, manifest.geometry.concurrency, manifest.geometry.pages, 0)
    return SmolLM2().load(core, manifest, config).model


def run(model: Model, tokens: Tensor, pages: Tensor, chunks: list[int], first: int = 0) -> Tensor:
    """Sampling vectors of `tokens` of one request, forwarded in these chunks."""
    found, start = [], 0
    for count in chunks:
        lane = Lane(slot=0, start=0, count=count, first=first + start, pages=pages)
        found.append(model.forward(rows_of(tokens[start : start + count], (lane,))))
        start += count
    return torch.cat(found)


@dataclass(frozen=True, slots=True)
class Distance:
    """How far logits are from others: centred relative L2 (largest), KL in nats (largest), top-10 overlap (mean)."""

    l2: float
    kl: float
    overlap: float


def distance(found: Tensor, wanted: Tensor) -> Distance:
    """Over rows of logits [n, V]."""
    a, b = found - found.mean(1, keepdim=True), wanted - wanted.mean(1, keepdim=True)
    p, q = wanted.log_softmax(1), found.log_softmax(1)
    top = zip(found.topk(10).indices.tolist(), wanted.topk(10).indices.tolist(), strict=True)
    shared = [len(set(one) & set(other)) for one, other in top]
    return Distance(
        l2=float(((a - b).norm(dim=1) / b.norm(dim=1)).max()),
        kl=float((p.exp() * (p - q)).sum(1).max()),
        overlap=sum(shared) / len(shared),
    )
