"""transformers' model over a checkpoint of ours, and the drafter from its blocks: references nobody here wrote."""

from __future__ import annotations

import warnings
from typing import Any, Protocol

import msgspec
import torch
from torch import Tensor, nn

from recipes.components.nvfp4_activations import ActivationPolicy
from recipes.components.tensor_store import TensorStore
from recipes.qwen38.architecture import Architecture
from recipes.qwen38.inventory import MTP, TARGET
from recipes.qwen38.ngram_tables import ngram_tables
from recipes.qwen38.weights import WeightReader
from tests.components.nvfp4_rounding import rounded_by_ml_dtypes

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from transformers import DynamicCache, Qwen4ExpForCausalLM, Qwen4ExpTextConfig
    from transformers.masking_utils import create_causal_mask
    from transformers.models.qwen4_exp import modeling_qwen4_exp as blocks


class Stored(Protocol):
    """A checkpoint, or the core that was made of it."""

    @property
    def architecture(self) -> Architecture: ...

    @property
    def tensors(self) -> TensorStore: ...


def _config(checkpoint: Stored, **changes: object) -> Any:
    values = msgspec.json.decode(msgspec.json.encode(checkpoint.architecture))
    del values["model_type"], values["mtp_num_hidden_layers"]
    config = Qwen4ExpTextConfig(**{**values, "bos_token_id": values["eos_token_id"], **changes})
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    return config


class _Names:
    """Weights of a transformers module by its own names, read from the checkpoint."""

    def __init__(self, checkpoint: Stored, prefix: str, *, target: bool) -> None:
        self._checkpoint, self._prefix, self._target = checkpoint, prefix, target
        self._reader = WeightReader(checkpoint.architecture, checkpoint.tensors)

    def _experts(self, base: str, part: str) -> Tensor:
        numbers = range(self._checkpoint.architecture.num_experts)
        return torch.stack([self._reader.expert(f"{base}.{n}.{part}_proj", target=self._target) for n in numbers])

    def load(self, module: nn.Module) -> None:
        values = {name: self.value(name).to(old.dtype) for name, old in module.state_dict().items()}
        module.load_state_dict(values)

    def value(self, name: str) -> Tensor:
        stored = name if name.startswith("lm_head") else self._prefix + name.removeprefix("model.")
        base = stored.rsplit(".", 1)[0]
        if stored.endswith(".gate_up_proj"):
            return torch.cat([self._experts(base, part) for part in ("gate", "up")], dim=1)
        if stored.endswith(".experts.down_proj"):
            return self._experts(base, "down")
        if stored.endswith(".ngram_embedding.weight"):
            return self._reader.table(base).rows(torch.arange(ngram_tables(self._checkpoint.architecture).rows))
        if stored.endswith(("_proj.weight", "_proj_qkv.weight", "_proj_z.weight", "_proj_a.weight", "_proj_b.weight")):
            return self._reader.projection(base)
        return self._checkpoint.tensors.tensor(stored)


class _RoundedExperts(nn.Module):
    """Routed experts over rounded activations (W4A4): a token and an expert at a time, with transformers' weights."""

    def __init__(self, experts: Any, reader: WeightReader, name: str) -> None:
        super().__init__()
        self._experts, numbers = experts, range(experts.num_experts)
        parts = ("gate", "up", "down")
        gate, up, self._down = (
            [reader.plain(f"{name}.{number}.{part}_proj.input_scale") for number in numbers] for part in parts
        )
        self._gate_up = [max(pair) for pair in zip(gate, up, strict=True)]

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        output, experts = torch.zeros_like(hidden_states), self._experts
        for row, rank in torch.cartesian_prod(*(torch.arange(size) for size in top_k_index.shape)):
            expert = int(top_k_index[row, rank])
            x = rounded_by_ml_dtypes(hidden_states[row][None], self._gate_up[expert])
            gate, up = (x @ experts.gate_up_proj[expert].t()).chunk(2, dim=-1)
            inner = rounded_by_ml_dtypes(experts.act_fn(gate) * up, self._down[expert])
            output[row] += top_k_weights[row, rank] * (inner @ experts.down_proj[expert].t())[0]
        return output


class TargetOracle:
    """Logits and streams of whole texts, without a cache; W4A4 rounds what its routed experts read."""

    def __init__(self, checkpoint: Stored, policy: ActivationPolicy = ActivationPolicy.W4A16) -> None:
        model: Any = Qwen4ExpForCausalLM  # untyped, as all of transformers
        self.model = model(_config(checkpoint)).float().eval()
        _Names(checkpoint, TARGET, target=True).load(self.model)
        if policy is ActivationPolicy.W4A4:
            reader = WeightReader(checkpoint.architecture, checkpoint.tensors)
            for number, layer in enumerate(self.model.model.layers):
                layer.mlp.experts = _RoundedExperts(layer.mlp.experts, reader, f"{TARGET}layers.{number}.mlp.experts")
        self._streams: list[Tensor] = []
        mixer = self.model.model.hyper_connection_mixer
        mixer.register_forward_pre_hook(lambda module, inputs: self._streams.append(inputs[0]))

    @torch.no_grad()
    def repeatability(self, tokens: Tensor) -> float:
        """How far the reference differs from itself: logits of cached steps against one forward pass."""
        return float((self.steps(tokens) - self.run(tokens)[0]).abs().max())

    @torch.no_grad()
    def steps(self, tokens: Tensor) -> Tensor:
        """Logits [n, vocab_size] of `tokens` int64 [n], one at a time over a cache."""
        cache = DynamicCache(config=self.model.config)
        found = [self.model(input_ids=token.view(1, 1), past_key_values=cache, use_cache=True) for token in tokens]
        return torch.cat([step.logits[0] for step in found])

    @torch.no_grad()
    def run(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [n, vocab_size] and streams [n, S * H] of `tokens` int64 [n]."""
        self._streams.clear()
        logits = self.model(input_ids=tokens[None], use_cache=False).logits[0]
        return logits, self._streams[0][0]


class _Drafter(nn.Module):
    """The MTP layer from transformers' blocks (shared/oracles/try_mtp_qwen.py shows that it can be done)."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config, size, streams = config, config.hidden_size, config.hc_count
        self.pre_fc_norm_embedding = blocks.Qwen4ExpTextRMSNorm(size, eps=config.rms_norm_eps)
        self.pre_fc_norm_hidden = blocks.Qwen4ExpTextRMSNorm(size * streams, eps=config.rms_norm_eps)
        self.fc_embedding = nn.Linear(size, size, bias=False)
        self.fc_hidden = nn.Linear(size, size, bias=False)
        self.layers = nn.ModuleList([blocks.Qwen4ExpTextDecoderLayer(config, 0)])
        self.hyper_connection_mixer = blocks.Qwen4ExpTextGatedResidual(config, use_combine=False)
        self.rotary_emb = blocks.Qwen4ExpTextRotaryEmbedding(config=config)

    def forward(self, embedded: Tensor, streams: Tensor) -> tuple[Tensor, Tensor]:
        rows, config = embedded.shape[1], self.config
        embedded = self.fc_embedding(self.pre_fc_norm_embedding(embedded))
        split = torch.unflatten(self.pre_fc_norm_hidden(streams), -1, (config.hc_count, config.hidden_size))
        state = self.fc_hidden(split).flatten(-2) + embedded.repeat(1, 1, config.hc_count)
        places = torch.arange(rows)
        mask = create_causal_mask(
            config=config,
            inputs_embeds=embedded,
            attention_mask=None,
            position_ids=places[None],
            past_key_values=None,
            allow_is_causal_skip=False,
        )
        rotary = self.rotary_emb(state, places.view(1, 1, -1).expand(3, 1, -1))
        state = self.layers[0](state, position_embeddings=rotary, attention_mask=mask)
        return state, self.hyper_connection_mixer(state)


class DrafterOracle:
    """Logits and streams of teacher-forced pairs."""

    def __init__(self, checkpoint: Stored, target: TargetOracle) -> None:
        config = _config(checkpoint, num_hidden_layers=1, layer_types=["full_attention"], ple_layer_ids=[])
        self._target = target
        self._layer = _Drafter(config).float().eval()
        _Names(checkpoint, MTP, target=False).load(self._layer)

    @torch.no_grad()
    def run(self, streams: Tensor, following: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [n, vocab_size] and streams [n, S * H] of pairs (streams [n, S * H], tokens that follow int64 [n])."""
        embedded = self._target.model.model.embed_tokens(following[None])
        state, mixed = self._layer(embedded, streams[None])
        return (mixed @ self._target.model.lm_head.weight.t())[0], state[0]
