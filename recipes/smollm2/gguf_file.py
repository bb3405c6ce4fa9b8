"""A GGUF checkpoint of the llama architecture, dequantised tensor by tensor.

Runs in `ignition` only. llama.cpp stores query and key rows with rotary pairs side by side, which is the layout that
the target wants: they are taken as they are.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from torch import Tensor

from recipes.components.core_folder import TextSide
from recipes.smollm2.architecture import Architecture, check_tensors, checked, required
from recipes.smollm2.tokenizer import byte_level_tokenizer
from shared.errors import CheckpointError
from shared.manifest import GenerationDefaults

_NAMES = {
    "attention_norm": "attn_norm",
    "query": "attn_q",
    "key": "attn_k",
    "value": "attn_v",
    "output": "attn_output",
    "mlp_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
_OUTER = {"embedding": "token_embd.weight", "norm": "output_norm.weight", "head": "output.weight"}
_QUANTISATION = re.compile(r"[.-]((i?q\d\w*)|b?f16|f32)$", re.IGNORECASE)
_ENDS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "</s>")
"""Control tokens that end a text besides the declared one, as in llama.cpp."""
_INSTRUCT_CARD = GenerationDefaults(temperature=0.2, top_p=0.9)
"""GGUF has no field for sampling defaults; these are of the model card of SmolLM2-Instruct."""


def _source_name(canonical: str) -> str:
    if canonical in _OUTER:
        return _OUTER[canonical]
    _, layer, part = canonical.split(".")
    return f"blk.{layer}.{_NAMES[part]}.weight"


class GgufFile:
    """One GGUF file, mapped. Raises `CheckpointError` on anything that the target cannot run."""

    def __init__(self, path: Path) -> None:
        try:
            reader = GGUFReader(path)
        except (ValueError, OSError, IndexError) as error:
            raise CheckpointError(f"{path} is not a readable GGUF file: {error}") from error
        self._fields: dict[str, object] = {name: field.contents() for name, field in reader.fields.items()}
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.model_name = _QUANTISATION.sub("", path.stem)
        self.architecture = self._read_architecture()
        wanted = {_source_name(name): shape for name, shape in self.architecture.tensors().items()}
        # GGUF lists the fastest dimension first.
        found = {name: tuple(int(size) for size in reversed(t.shape)) for name, t in self._tensors.items()}
        check_tensors(found, wanted)

    def _read_architecture(self) -> Architecture:
        fields = self._fields
        family = required(fields, "general.architecture", str)
        if family != "llama":
            raise CheckpointError(f"architecture {family!r} is not of the llama family")
        refused = sorted(name for name in fields if name.startswith(("llama.rope.scaling", "llama.expert")))
        if refused:
            raise CheckpointError(f"not supported: {', '.join(refused)}")
        hidden = required(fields, "llama.embedding_length", int)
        queries = required(fields, "llama.attention.head_count", int)
        size = required(fields, "llama.rope.dimension_count", int)
        if fields.get("llama.attention.key_length", size) != size:
            raise CheckpointError("rotary positions on a part of each head are not supported")
        return checked(
            Architecture(
                vocab_size=len(required(fields, "tokenizer.ggml.tokens", list)),
                hidden_size=hidden,
                layers=required(fields, "llama.block_count", int),
                query_heads=queries,
                key_heads=required(fields, "llama.attention.head_count_kv", int),
                head_size=size,
                intermediate_size=required(fields, "llama.feed_forward_length", int),
                context_length=required(fields, "llama.context_length", int),
                rope_theta=required(fields, "llama.rope.freq_base", float),
                norm_epsilon=required(fields, "llama.attention.layer_norm_rms_epsilon", float),
                tied="output.weight" not in self._tensors,
            )
        )

    def tensor(self, name: str) -> Tensor:
        """The dequantised tensor, float32. Raises `CheckpointError` on a quantisation that `gguf` cannot read."""
        source = self._tensors[_source_name(name)]
        try:
            values = dequantize(source.data, source.tensor_type)
        except NotImplementedError as error:
            raise CheckpointError(f"{source.name}: cannot dequantise {source.tensor_type.name}") from error
        return torch.tensor(values, dtype=torch.float32)

    def text_side(self) -> TextSide:
        """The tokenizer rebuilt from the metadata; its chat template, special tokens and sampling defaults."""
        fields = self._fields
        tokens = required(fields, "tokenizer.ggml.tokens", list)
        begin = required(fields, "tokenizer.ggml.bos_token_id", int)
        end = required(fields, "tokenizer.ggml.eos_token_id", int)
        config: dict[str, object] = {
            "bos_token": tokens[begin],
            "eos_token": tokens[end],
            "chat_template": required(fields, "tokenizer.chat_template", str),
            "add_bos_token": bool(fields.get("tokenizer.ggml.add_bos_token", False)),
        }
        ends = dict.fromkeys([end] + [tokens.index(token) for token in _ENDS if token in tokens])
        return TextSide(
            tokenizer=byte_level_tokenizer(fields),
            tokenizer_config=config,
            end_ids=tuple(ends),
            defaults=_INSTRUCT_CARD if fields.get("general.basename") == "smollm2" else GenerationDefaults(),
        )
