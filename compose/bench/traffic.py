"""Bytes that a generation round has to move through device memory: weights once, states, keys and values.

From geometry alone, for the recipes whose weights a GPU reads in known types. Logits, activations and sampling do not
count. Experts of a mixture count as many as its rows choose, which a bench may have counted; here it is as many as they
choose if they choose at random, which random weights come close to.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from shared.manifest import ExecutionGraph, Manifest

if TYPE_CHECKING:
    from recipes.qwen38.architecture import Architecture
    from recipes.qwen38.inventory import Spec

_PLAIN = 2
"""Bytes of a bfloat16."""
_EXPERT, _HEAD = ".experts.", "lm_head.weight"
_NVFP4 = 1 / 2 + 1 / 16
"""Bytes of a weight with its share of a block scale."""
_ABSORBED = ("fc_", "attn_hyper_connection", "k_proj", "v_proj")
"""What absorbing reads of the drafter's tensors: its projection, a mixer, and a layer's keys and values."""


def round_bytes(manifest: Manifest, graph: ExecutionGraph, lanes: float, position: int) -> float | None:
    """Of one round of `graph` with so many lanes at `position`, or None for a recipe that is not known here."""
    name = manifest.recipe.removeprefix("random-")
    if name == "smollm2":
        return _smollm2(manifest, lanes, position)
    if name == "qwen3.8-flash":
        return _qwen38(manifest, graph, lanes, position)
    return None


def _smollm2(manifest: Manifest, lanes: float, position: int) -> float:
    from recipes.smollm2.recipe import settings_of

    a = settings_of(manifest).architecture
    shapes = a.tensors()
    # A tied table is the head too, and read whole as such; of an untied one only few rows are read.
    weights = sum(prod(shape) for name, shape in shapes.items() if name != "embedding" or a.tied)
    cached = lanes * position * 2 * a.key_heads * a.head_size * a.layers
    return float(_PLAIN * (weights + cached))


def _qwen38(manifest: Manifest, graph: ExecutionGraph, lanes: float, position: int) -> float:
    from recipes.qwen38.recipe import settings_of

    a, depths = settings_of(manifest).architecture, graph.draft_tokens

    def union(rows: float) -> float:
        return float(a.num_experts * (1 - (1 - a.num_experts_per_tok / a.num_experts) ** rows))

    rows = lanes * max(graph.verify_tokens, 1)
    target = qwen38_target(a, lanes, position, a.num_hidden_layers * union(rows))
    if graph.kind != "speculative" or not graph.draft_source:
        return target
    return target + qwen38_drafter(a, lanes, position, depths, depths * union(lanes))


def qwen38_target(a: Architecture, lanes: float, position: int, union: float) -> float:
    """What a round of the target must read and write. `union`: different experts that it chooses, over all layers."""
    from recipes.qwen38.inventory import target_tensors

    dense = sum(size for name, size in _sizes(target_tensors(a)).items() if _EXPERT not in name)
    sparse = sum(a.is_sparse(layer) for layer in range(a.num_hidden_layers))
    matrices = a.linear_num_value_heads * a.linear_key_head_dim * a.linear_value_head_dim * 4
    states = lanes * (a.num_hidden_layers - sparse) * 2 * matrices
    return dense + union * _expert(a) + states + lanes * sparse * sum(_attended(a, position))


def qwen38_drafter(a: Architecture, lanes: float, position: int, depths: int, union: float) -> float:
    """What the drafter of a round must read: all it has and the head once a depth, and what absorbing takes.

    `union`: different experts that it chooses, over all depths.
    """
    from recipes.qwen38.inventory import mtp_tensors, target_tensors

    sizes = _sizes(mtp_tensors(a))
    dense = sum(size for name, size in sizes.items() if _EXPERT not in name) + _sizes(target_tensors(a))[_HEAD]
    absorbed = sum(size for name, size in sizes.items() if any(part in name for part in _ABSORBED))
    seen, groups = _attended(a, position)
    chosen = lanes * groups if depths else 0
    return depths * (dense + lanes * seen) + union * _expert(a) + chosen + absorbed


def _sizes(specs: dict[str, Spec]) -> dict[str, float]:
    """Bytes of each tensor, without embeddings, of which a round reads a row."""
    from recipes.components.safetensors_headers import BITS

    return {
        name: prod(spec.shape) * BITS[spec.dtypes[0]] / 8
        for name, spec in specs.items()
        if "ngram_embedding" not in name and "embed_tokens" not in name
    }


def _expert(a: Architecture) -> float:
    return 3 * a.hidden_size * a.moe_intermediate_size * _NVFP4


def _attended(a: Architecture, position: int) -> tuple[float, float]:
    """Keys and values that one layer's attention of a lane may choose, and groups that it chooses among."""
    budget = a.indexer_budget
    seen = min(position, budget) * 2 * a.num_key_value_heads * a.head_dim * _PLAIN
    groups = position / a.indexer_compress_ratio * a.indexer_head_dim * _PLAIN if position > budget else 0
    return seen, groups
