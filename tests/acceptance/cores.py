"""Cores of the tiny Qwen3.8 for the acceptance list, and a host over one: the worker's real catalog in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from recipes.declaration import PreparationConfig
from recipes.qwen38.architecture import Architecture
from recipes.qwen38.mtp import MtpDrafter
from recipes.qwen38.recipe import Qwen38
from recipes.qwen38.target import Target
from recipes.qwen38.tiny import tiny_architecture, write_tiny
from services.worker.config import WorkerConfig
from services.worker.preparation import create_frames, prepare
from shared.frames import FRAMES, completion_frame, plan_frame
from shared.manifest import Kind, read
from tests.worker.host import Host, Record

LETTERS = tuple(range(97, 105))
"""The tokens that `agreeing` says: all others have a logit of zero, below the four best of these."""

Change = Callable[[str, Tensor], Tensor]


def small_architecture() -> Architecture:
    """One layer of each kind, the n-gram layer at the first: rounds of a few milliseconds, for thousands of draws."""
    return tiny_architecture(
        num_hidden_layers=2,
        layer_types=("linear_attention", "full_attention"),
        ple_layer_ids=(1,),
        hidden_size=32,
        hc_count=2,
        num_experts=2,
        num_experts_per_tok=2,
        linear_num_value_heads=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=264,
        eos_token_id=263,
    )


def agreeing(name: str, value: Tensor) -> Tensor:
    """Weights with which the drafter often says what the target says: random ones never agree, and nothing is accepted.

    Both models then follow the last token's embedding, and the rest of their state a little. Letters come in opposite
    pairs, so that at least four of eight have a positive logit and a top-k of four holds no ties.
    """
    if name == "lm_head.weight":
        half = torch.randn(len(LETTERS) // 2, value.shape[1], generator=torch.Generator().manual_seed(5)) * 0.6
        head = torch.zeros_like(value)
        head[list(LETTERS)] = torch.stack([half, -half], dim=1).flatten(0, 1).to(value.dtype)
        return head
    if name == "mtp.fc_embedding.weight":
        return torch.eye(len(value)).to(value.dtype)
    if name == "mtp.fc_hidden.weight":
        return (value.float() * 0.2).to(value.dtype)
    if name.endswith("embed_tokens.weight"):
        return (value.float() * 4.0).to(value.dtype)
    return value


def write_core(folder: Path, architecture: Architecture, config: PreparationConfig, change: Change | None) -> Path:
    """Exports a tiny checkpoint, its stored tensors changed by name first."""
    checkpoint = folder / "checkpoint"
    write_tiny(checkpoint, architecture, seed=1)
    if change is not None:
        for file in checkpoint.glob("*.safetensors"):
            changed = {name: change(name, value).contiguous() for name, value in load_file(file).items()}
            save_file(changed, file)
    Qwen38().export(checkpoint, folder / "core", config, lambda what, done, total: None)
    return folder / "core"


@dataclass(slots=True)
class SharingHost(Host):
    """A host whose slots may begin with pages of others: `borrowed` are the first pages of a slot's table."""

    borrowed: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def pages(self, slot: int) -> np.ndarray:
        """The slot's table: borrowed pages, then its own."""
        found = Host.pages(self, slot)
        first = self.borrowed.get(slot, ())
        found[: len(first)] = first
        return found


@contextmanager
def opened(core: Path, instance: int) -> Iterator[SharingHost]:
    """A host over the core, prepared as a worker prepares it. `instance` names its frames."""
    manifest = read(core)
    frames = create_frames(manifest, instance)
    try:
        catalog = prepare(WorkerConfig(core=core, run_dir=core, threads=1), manifest, frames)
        plans = tuple(plan_frame(frames.plan_layout, frames.plan.payload, i) for i in range(FRAMES))
        outs = tuple(completion_frame(frames.completion_layout, frames.completion.payload, i) for i in range(FRAMES))
        yield SharingHost(manifest, catalog, plans, outs)
    finally:
        frames.close()


def target_of(host: Host) -> Target:
    """The target behind a host."""
    model = host.catalog.model
    assert isinstance(model, Target)
    return model


def drafter_of(host: Host) -> MtpDrafter:
    """The drafter behind a host."""
    drafter = host.catalog._drafter
    assert isinstance(drafter, MtpDrafter)
    return drafter


def named(host: Host, kind: Kind, slot: int, row: int, noted: tuple[int, ...] = ()) -> Record:
    """One `restore`, `resume` or `snapshot` of a slot.

    A restore states how many tokens the row holds, and may note those tokens for the request's penalties.
    """
    graph = host.manifest.index_of(kind, 1, 0)
    plan = host.plan(graph)
    plan.chunk_slot[0], plan.chunk_epoch[0], plan.chunk_request[0] = slot, host.epochs[slot], 100 + slot
    plan.chunk_start[0], plan.chunk_length[0] = 0, len(noted)
    plan.chunk_tokens[: len(noted)] = noted
    plan.snapshot_row[0] = row
    if kind == "restore":
        plan.restore_length[0] = host.catalog.snapshots.consumed[row]
    record = host.replay(graph)[slot]
    assert not record.faults, record.faults
    return record
