"""The smallest Qwen3.8 with a layer of each kind: Triton's interpreter takes a second for a launch of a larger one."""

from __future__ import annotations

from recipes.qwen38.architecture import Architecture
from recipes.qwen38.tiny import tiny_architecture


def smallest() -> Architecture:
    """A delta net, a sparse attention, two streams."""
    return tiny_architecture(
        num_hidden_layers=2,
        layer_types=("linear_attention", "full_attention"),
        num_attention_heads=2,
        num_key_value_heads=1,
        linear_num_key_heads=1,
        linear_num_value_heads=2,
        num_experts_per_tok=2,
        hc_count=2,
        ple_layer_ids=(1,),
    )
