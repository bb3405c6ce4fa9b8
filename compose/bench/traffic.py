"""Bytes that a generation round has to move through device memory: weights once, states, keys and values.

From geometry alone, for the recipes whose weights a GPU reads in known types. Experts of a mixture count as many as the
rows choose if they choose at random, which random weights come close to. Logits, activations and sampling do not count.
"""

from __future__ import annotations

from math import prod

from shared.manifest import ExecutionGraph, Manifest

_PLAIN = 2
"""Bytes of a bfloat16."""
_EXPERT = ".experts."
_NVFP4 = 1 / 2 + 1 / 16
"""Bytes of a weight with its share of a block scale."""


def round_bytes(manifest: Manifest, graph: ExecutionGraph, position: int) -> float | None:
    """Of one round of `graph` with all lanes at `position`, or None for a recipe that is not known here."""
    name = manifest.recipe.removeprefix("random-")
    if name == "smollm2":
        return _smollm2(manifest, graph, position)
    if name == "qwen3.8-flash":
        return _qwen38(manifest, graph, position)
    return None


def _smollm2(manifest: Manifest, graph: ExecutionGraph, position: int) -> float:
    from recipes.smollm2.recipe import settings_of

    a = settings_of(manifest).architecture
    shapes = a.tensors()
    # A tied table is the head too, and read whole as such; of an untied one only few rows are read.
    weights = sum(prod(shape) for name, shape in shapes.items() if name != "embedding" or a.tied)
    cached = graph.batch_capacity * position * 2 * a.key_heads * a.head_size * a.layers
    return float(_PLAIN * (weights + cached))


def _qwen38(manifest: Manifest, graph: ExecutionGraph, position: int) -> float:
    from recipes.components.safetensors_headers import BITS
    from recipes.qwen38.inventory import Spec, mtp_tensors, target_tensors
    from recipes.qwen38.recipe import settings_of

    a, rows = settings_of(manifest).architecture, graph.batch_capacity * max(graph.verify_tokens, 1)

    def dense(tensors: dict[str, Spec]) -> float:
        kept = {name: spec for name, spec in tensors.items() if _EXPERT not in name and "ngram_embedding" not in name}
        return sum(
            prod(spec.shape) * BITS[spec.dtypes[0]] / 8 for name, spec in kept.items() if "embed_tokens" not in name
        )

    def experts(count: int) -> float:
        union = a.num_experts * (1 - (1 - a.num_experts_per_tok / a.num_experts) ** count)
        return union * 3 * a.hidden_size * a.moe_intermediate_size * _NVFP4

    sparse = sum(a.is_sparse(layer) for layer in range(a.num_hidden_layers))
    matrices = a.linear_num_value_heads * a.linear_key_head_dim * a.linear_value_head_dim * 4
    seen = min(position, a.indexer_budget) * 2 * a.num_key_value_heads * a.head_dim * _PLAIN
    groups = position / a.indexer_compress_ratio * a.indexer_head_dim * _PLAIN if position > a.indexer_budget else 0
    states = graph.batch_capacity * ((a.num_hidden_layers - sparse) * 2 * matrices + sparse * (seen + groups))
    target = dense(dict(target_tensors(a))) + a.num_hidden_layers * experts(rows)
    if graph.kind != "speculative" or not graph.draft_source:
        return target + states
    # The drafter's layer and the head once for each draft, and the layer once more to absorb what was accepted.
    layer, head = dense(dict(mtp_tensors(a))), a.vocab_size * a.hidden_size * _PLAIN
    drafted = graph.draft_tokens * (layer + experts(graph.batch_capacity) + head) + layer + experts(rows)
    return target + states + drafted
