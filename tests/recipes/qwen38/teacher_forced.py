"""Teacher-forced runs of ours beside transformers' on the same weights: every way of feeding a text, and MTP rows.

Both read the same tokens, whatever they would have said. Full-vocabulary logits of both are kept, a stage each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from recipes.components.diagnostics import Divergence, divergence
from recipes.components.model import Lane, rows_of
from recipes.components.nvfp4_activations import ActivationPolicy
from recipes.components.safetensors_headers import survey
from recipes.components.tensor_store import TensorStore
from recipes.declaration import LoadConfig
from recipes.qwen38.architecture import Architecture
from recipes.qwen38.inventory import MTP
from recipes.qwen38.mtp import MtpLayer
from recipes.qwen38.recipe import settings_of
from recipes.qwen38.target import VERIFIED_ROWS, Target
from recipes.qwen38.weights import WeightReader, read_drafter, read_target
from shared.manifest import PAGE_TOKENS, read
from tests.recipes.qwen38.oracle import DrafterOracle, Stored, TargetOracle


@dataclass(frozen=True, slots=True)
class Stage:
    """One way of running the text: logits [n, vocab_size] of the reference and of what it is compared with."""

    name: str
    reference: Tensor
    actual: Tensor

    @property
    def divergence(self) -> Divergence:
        """How far `actual` lies from `reference`, a row each."""
        return divergence(self.reference, self.actual)


@dataclass(frozen=True, slots=True)
class Core:
    """An exported core, as the oracles read it. Raises `ManifestError` where it is not of this recipe."""

    folder: Path

    @property
    def architecture(self) -> Architecture:
        """The model's shape."""
        return settings_of(read(self.folder)).architecture

    @property
    def policy(self) -> ActivationPolicy:
        """What the core declares."""
        return settings_of(read(self.folder)).activations

    @property
    def tensors(self) -> TensorStore:
        """Target, its n-gram table, and the drafter if there is one."""
        return TensorStore(survey(self.folder.glob("*.safetensors")))


def has_drafter(stored: Stored) -> bool:
    """A core may have been exported without."""
    return any(name.startswith(MTP) for name in stored.tensors.located)


class Ours:
    """A slot of our target and of our drafter's layer, if there is one, with pages that hold the whole text."""

    def __init__(self, stored: Stored, policy: ActivationPolicy, length: int) -> None:
        reader, a = WeightReader(stored.architecture, stored.tensors), stored.architecture
        weights, pages = read_target(reader, policy), length // PAGE_TOKENS + 2
        self.target = Target(a, weights, LoadConfig(False, slots=1, pages=pages, snapshots=0))
        drafter = read_drafter(reader, weights) if has_drafter(stored) else None
        self._layer = MtpLayer(a, drafter, pages, 1) if drafter else None
        self._pages = torch.arange(pages)

    @torch.inference_mode()
    def logits(self, tokens: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Logits and streams of `tokens`, `width` at a time, each lane committed as a whole."""
        self.target.reset(0)
        streams = []
        for first in range(0, len(tokens), width):
            part = tokens[first : first + width]
            lane = Lane(0, 0, len(part), first, self._pages)
            streams.append(self.target.forward(rows_of(part, (lane,))))
            self.target.commit(lane, len(part))
        found = torch.cat(streams)
        return self.target.logits(found), found

    @torch.inference_mode()
    def pairs(self, streams: Tensor, following: Tensor, width: int) -> Tensor:
        """The drafter's logits of pairs (streams at i, token i + 1), `width` at a time. Needs a drafter."""
        assert self._layer is not None
        self._layer.cache.rings.clear(0)
        found = []
        for first in range(0, len(following), width):
            part = slice(first, first + width)
            lane = Lane(0, 0, len(following[part]), first, self._pages)
            found.append(self._layer.forward(streams[part], following[part], lane)[0])
        return self._layer.logits(torch.cat(found))


def stages(stored: Stored, policy: ActivationPolicy, tokens: Tensor) -> Iterator[Stage]:
    """The reference against itself first (its cached steps), then ours against it; drafter's rows if there is one."""
    oracle, ours = TargetOracle(stored, policy), Ours(stored, policy, len(tokens))
    logits, streams = oracle.run(tokens)
    yield Stage("reference, cached steps", logits, oracle.steps(tokens))
    yield Stage("prefill", logits, ours.logits(tokens, len(tokens))[0])
    yield Stage("cached decode", logits, ours.logits(tokens, 1)[0])
    for width in range(2, VERIFIED_ROWS + 1):
        yield Stage(f"verification, width {width}", logits, ours.logits(tokens, width)[0])
    if not has_drafter(stored):
        return
    wanted, _ = DrafterOracle(stored, oracle).run(streams[:-1], tokens[1:])
    own = ours.logits(tokens, len(tokens))[1][:-1]
    for name, given in (("MTP rows, reference streams", streams[:-1]), ("MTP rows, own streams", own)):
        yield Stage(f"{name}, at once", wanted, ours.pairs(given, tokens[1:], len(tokens)))
        yield Stage(f"{name}, one by one", wanted, ours.pairs(given, tokens[1:], 1))
