"""What config.json says of the checkpoint's quantisation, against what the recipe expects. Pure.

The map is modelopt's: module name to algorithm. The drafter's entry is keyed by the layer index that it has at run
time, `mtp.layers.48`, while its tensors are stored under `mtp.layers.0`: that alias is kept as explicit metadata.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from recipes.components import nvfp4
from recipes.qwen38.architecture import Architecture
from recipes.qwen38.inventory import MTP, TARGET
from shared.errors import CheckpointError

NVFP4, W4A16, MXFP8 = "NVFP4", "W4A16_NVFP4", "MXFP8"


class Layer(msgspec.Struct, frozen=True):
    """One entry of `quantized_layers`."""

    quant_algo: str
    group_size: int | None = None
    weight_scale_encoding: str | None = None


class QuantizationConfig(msgspec.Struct, frozen=True):
    """`quantization_config` of config.json."""

    quant_method: str
    quant_algo: str
    quantized_layers: dict[str, Layer]


def mtp_alias(architecture: Architecture) -> tuple[str, str]:
    """The drafter's layer as the quantisation map names it, and as its tensors are stored."""
    return f"{MTP}layers.{architecture.num_hidden_layers}", f"{MTP}layers.0"


def expected_layers(a: Architecture) -> dict[str, Layer]:
    """Module to its entry; the n-gram table is listed apart by some exporters and is not asked for."""
    found: dict[str, Layer] = {}
    for layer in range(a.num_hidden_layers):
        name = f"{TARGET}layers.{layer}"
        found[f"{name}.mlp.experts"] = Layer(NVFP4, nvfp4.BLOCK, "csf")
        found[f"{name}.mlp.shared_expert"] = Layer(MXFP8)
        mixer = f"{name}.self_attn" if a.is_sparse(layer) else f"{name}.linear_attn"
        found[mixer] = Layer(MXFP8)
    found[f"{mtp_alias(a)[0]}.mlp.experts"] = Layer(W4A16, nvfp4.BLOCK)
    return found


def _entries(declared: Mapping[str, Layer], module: str) -> list[tuple[str, Layer]]:
    """The entries about a module: its own, or those of what lies inside it."""
    own = declared.get(module)
    return [(module, own)] if own else [(n, layer) for n, layer in declared.items() if n.startswith(f"{module}.")]


def check_quantization(config: bytes, architecture: Architecture) -> None:
    """Raises one `CheckpointError` that names every module whose declared algorithm is not the one expected."""
    try:
        raw = msgspec.json.decode(config, type=dict[str, msgspec.Raw]).get("quantization_config")
        if raw is None:
            raise CheckpointError("config.json has no quantization_config: this is not an FP4-Local checkpoint")
        declared = msgspec.json.decode(raw, type=QuantizationConfig)
    except msgspec.MsgspecError as error:
        raise CheckpointError(f"config.json's quantization_config is not modelopt's: {error}") from error
    if (declared.quant_method, declared.quant_algo) != ("modelopt", "MIXED_PRECISION"):
        raise CheckpointError(
            f"quantisation {declared.quant_method}/{declared.quant_algo} is not modelopt/MIXED_PRECISION"
        )
    wrong = []
    for module, wanted in expected_layers(architecture).items():
        entries = _entries(declared.quantized_layers, module)
        if not entries:
            wrong.append(f"{module} is missing, {wanted.quant_algo} expected")
        wrong += [
            f"{name} is {layer.quant_algo} {layer.group_size or ''} {layer.weight_scale_encoding or ''}".rstrip()
            for name, layer in entries
            if layer.quant_algo != wanted.quant_algo
            or (wanted.group_size is not None and layer.group_size != wanted.group_size)
            or layer.weight_scale_encoding != wanted.weight_scale_encoding
        ]
    if wrong:
        more = f" and {len(wrong) - 8} more" if len(wrong) > 8 else ""
        raise CheckpointError("quantized_layers: " + "; ".join(wrong[:8]) + more)
