"""Captured graphs over fixed buffers: every bucket, padded lanes; nothing allocated, nothing aliased, or no start."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from recipes.qwen38.recipe import Qwen38
from services.worker.config import WorkerConfig
from services.worker.preparation import create_frames, prepare
from shared.errors import ContractBreach, MemoryRefused
from shared.frames import FRAMES, Meta
from shared.manifest import ExecutionGraph, read
from shared.messages.common import Sampling
from tests.acceptance.cores import SharingHost, drafter_of, named, target_of
from tests.acceptance.states import everything, poison
from tests.acceptance.texts import Tokens
from tests.worker.host import LanePlan, Record
from tests.worker.qwen38_talk import prompt_of

GREEDY = Sampling(temperature=0.0, logprobs=2)
PROMPTS = {slot: prompt_of(60 + slot, 21 + 13 * slot) for slot in range(4)}
BUDGET, TIE = 180, 1e-3
CARRYING = ("decode", "speculative", "mixed")


def decoded(host: SharingHost, slot: int, count: int) -> Tokens:
    """A slot's greedy text, one row a round, up to the first near tie."""
    record = host.start(3, PROMPTS[slot], GREEDY, count)
    said: list[int] = []
    while True:
        top = host.completions[record[Meta.SEQUENCE] % FRAMES].top_logprobs[3, 0]
        if float(top[0] - top[1]) < TIE or not record.tokens:
            return tuple(said)
        said.extend(record.tokens)
        record = host.round([LanePlan(3)], 1, "decode")[3]


class Alternation:
    """Four requests through every graph that carries lanes, capacities and families in turn."""

    def __init__(self, host: SharingHost) -> None:
        self.host = host
        self.said: dict[int, list[int]] = {}
        self.replayed: set[int] = set()

    def run(self, speculative: bool) -> None:
        """All graphs of one serving mode: a request stays in its mode, since ordinary rounds absorb nothing."""
        self.said.clear()
        for slot in range(3):
            self._note(slot, self.host.start(slot, PROMPTS[slot], GREEDY, BUDGET), new=True)
        graphs = [
            (index, graph)
            for index, graph in enumerate(self.host.manifest.graphs)
            if graph.kind in CARRYING and graph.speculation_enabled is not (not speculative)
        ]
        half = (len(graphs) + 1) // 2  # the largest beside the smallest
        pairs = itertools.zip_longest(graphs[:half], reversed(graphs[half:]))
        for turn, (index, graph) in enumerate(one for pair in pairs for one in pair if one is not None):
            self._replay(index, graph, lanes=1 + turn % graph.batch_capacity)

    def _note(self, slot: int, record: Record, new: bool = False) -> None:
        assert not record.faults
        self.said[slot] = [*([] if new else self.said[slot]), *record.tokens]

    def _replay(self, index: int, graph: ExecutionGraph, lanes: int) -> None:
        """One round of fewer lanes than the graph has, or as many, at all widths up to the graph's."""
        host, mixed = self.host, graph.kind == "mixed"
        if mixed:
            host.init(3, len(PROMPTS[3]), GREEDY, BUDGET, ())
            host.chunk(3, 0, PROMPTS[3][:-32], final=0)
            self.said.pop(3, None)
        slots = sorted(self.said, key=lambda slot: (len(self.said[slot]), slot))[:lanes]
        plan = host.plan(index)
        width = max(graph.verify_tokens, 1)
        host.fill_lanes(plan, [LanePlan(slot, max(1, width - place)) for place, slot in enumerate(slots)])
        if mixed:
            host.fill_chunk(plan, 3, len(PROMPTS[3]) - 32, PROMPTS[3][-32:], 1, -1, -1)
        found = host.replay(index)
        self.replayed.add(index)
        for slot in slots:
            self._note(slot, found[slot])
        if mixed:
            self._note(3, found[3], new=True)
        poison(host)


def test_every_bucket_with_padded_lanes_continues_every_text(host: SharingHost) -> None:
    """ "all graph buckets and padded lanes"; "Padding changes capacity, not causal history"; "Poison shared scratch
    between calls; alternate graph families and capacities"."""
    texts = {slot: decoded(host, slot, 120) for slot in range(4)}
    compared = 0
    run = Alternation(host)
    for speculative in (True, False):
        run.run(speculative)
        for slot, said in run.said.items():
            length = min(len(said), len(texts[slot]))
            assert tuple(said[:length]) == texts[slot][:length]
            compared += length
    assert compared > 60
    assert run.replayed == {index for index, graph in enumerate(host.manifest.graphs) if graph.kind in CARRYING}


def test_replays_allocate_nothing_that_stays_and_move_no_buffer(host: SharingHost) -> None:
    """ "Every admitted graph must replay without allocation, compilation, recapture or Python callbacks": on the CPU,
    nothing outlives a replay, every buffer stays where it was, and the catalog is closed."""
    run = Alternation(host)
    run.run(True)
    run.run(False)
    addresses = {name: tensor.data_ptr() for name, tensor in everything(host).items()}
    programs = host.catalog._programs
    alive = tensors_alive()
    run.run(False)
    run.run(True)
    assert tensors_alive() == alive
    assert {name: tensor.data_ptr() for name, tensor in everything(host).items()} == addresses
    assert host.catalog._programs is programs
    with pytest.raises(ContractBreach, match="frozen"):
        host.catalog.capture()


def tensors_alive() -> int:
    gc.collect()
    return sum(isinstance(thing, Tensor) for thing in gc.get_objects())


def test_no_output_that_stays_lies_in_volatile_storage(host: SharingHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """ "verify no escaping output aliases volatile storage": what operators returned is NaN once a round is over."""
    slot, text = 1, decoded(host, 1, 40)
    volatile: list[Tensor] = []

    def noted(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named_arguments: Any) -> Any:
            found = call(*arguments, **named_arguments)
            volatile.extend(part for part in (found if isinstance(found, tuple) else (found,)) if torch.is_tensor(part))
            return found

        return wrapped

    target, layer = target_of(host), drafter_of(host)._layer
    for owner, name in ((target, "forward"), (target, "logits"), (layer, "forward"), (layer, "logits")):
        monkeypatch.setattr(owner, name, noted(getattr(owner, name)))
    record = host.start(slot, PROMPTS[slot], GREEDY, 40)
    said = list(record.tokens)
    for turn in range(6):
        record = host.round([LanePlan(slot, 1 + 3 * turn % 8)], 8)[slot]
        named(host, "snapshot", slot, 0)
        said.extend(record.tokens)
        assert volatile
        with torch.inference_mode():
            for tensor in volatile:
                if tensor.is_floating_point():
                    tensor.fill_(torch.nan)
        volatile.clear()
    length = min(len(said), len(text))
    assert length > 6
    assert tuple(said[:length]) == text[:length]


def test_a_record_stays_until_its_frame_comes_round_again(host: SharingHost) -> None:
    """ "Store returned token IDs in persistent completion storage"; "ABI6 uses two transfer frames": the round behind
    it leaves a record as it is, and so does a plan that is written into the other frame."""
    host.start(0, PROMPTS[0], GREEDY, BUDGET)
    for _ in range(4):
        record = host.round([LanePlan(0, 8)], 8)[0]
        frame = host.completions[record[Meta.SEQUENCE] % FRAMES]
        kept = frame.records.copy(), frame.logprobs.copy(), frame.top_ids.copy(), int(frame.head[0])
        later = host.round([LanePlan(0, 3)], 3)[0]
        assert later[Meta.SEQUENCE] == record[Meta.SEQUENCE] + 1
        assert (frame.records == kept[0]).all()
        assert (frame.logprobs == kept[1]).all()
        assert (frame.top_ids == kept[2]).all()
        assert frame.head[0] == frame.tail[0] == kept[3]


def test_a_core_that_cannot_fit_is_refused_unread(core: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ "Startup fails if weights, verification state, graph pool and reserved pages cannot fit"."""

    def loaded(*arguments: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(Qwen38, "load", loaded)
    manifest = read(core)
    frames = create_frames(manifest, 96)
    try:
        with pytest.raises(MemoryRefused) as refused:
            prepare(WorkerConfig(core=core, run_dir=core, headroom=1 << 60), manifest, frames)
    finally:
        frames.close()
    bill = str(refused.value)
    for kind in ("weights", "pages", "recurrent", "snapshots", "scratch", "penalties", "frames", "headroom"):
        assert kind in bill, bill
