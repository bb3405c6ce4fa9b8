"""The replay floor: recorded rounds replayed back to back in a worker alone, with no scheduler, frontend or client.

A process of its own, `python -m compose.bench.floor CORE RECORDING`; it prints one `Floor` as JSON. The worker is set
up as the recorded one was, and the catalog starts as fresh as that one did, so every round emits what it emitted then;
one that does not ends the run. A GPU has two rounds queued and frames that another process has opened, as in the
service, and only some of its rounds are looked at.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import sys
from pathlib import Path
from time import monotonic, perf_counter_ns
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from services.worker.config import WorkerConfig
from services.worker.devices.opened import opened_once
from services.worker.devices.recorder import emitted
from services.worker.preparation import Frames, create_frames, prepare
from services.worker.recording import UNKNOWN, RecordedRound, rounds_of, worker_of
from shared import logs, manifest
from shared.errors import ContractBreach
from shared.frames import FRAMES, Meta, completion_frame
from shared.manifest import Manifest
from shared.messages.common import new_instance

if TYPE_CHECKING:
    from services.worker.devices.catalog import DeviceCatalog
    from services.worker.devices.cuda import CudaFrames


WARM_S = 1.0
LOOKED_AT = 8
"""On a GPU so many rounds go by between two that are looked at: the scheduler reads records, no worker does. Each round
goes on from what the one before left, so that rounds that once parted stay apart."""


class Replayed(msgspec.Struct, frozen=True):
    """A round of the floor, in nanoseconds: on the device, before it with the device idle, of the host's launch."""

    took_ns: int
    gap_ns: int = 0
    launch_ns: int = 0


class Floor(msgspec.Struct, frozen=True):
    """`nodes` of each graph of the core, in the manifest's order; `bandwidth` of a large copy, bytes a nanosecond."""

    rounds: tuple[Replayed, ...]
    nodes: tuple[int, ...] = ()
    bandwidth: float = 0.0
    device: str = ""


def main() -> None:
    """Replays the recording named on the command line."""
    logs.configure("floor", logs.LogConfig(log_level="warning"))
    core, recording = Path(sys.argv[1]), Path(sys.argv[2])
    found, config = manifest.read(core), worker_of(recording).config(core)
    frames = create_frames(found, new_instance())
    rounds = list(rounds_of(recording))
    try:
        floor = (on_cuda if config.device == "cuda" else on_cpu)(config, found, frames, rounds)
    finally:
        frames.close()
    print(msgspec.json.encode(floor).decode())


def on_cpu(config: WorkerConfig, found: Manifest, frames: Frames, rounds: list[RecordedRound]) -> Floor:
    """One after another."""
    catalog = prepare(config, found, frames)
    plans = np.frombuffer(frames.plan.payload, dtype=np.uint8)
    outs = [completion_frame(frames.completion_layout, frames.completion.payload, i) for i in range(FRAMES)]
    replayed = []
    for recorded in rounds:
        _write(plans, catalog.counter, recorded)
        begin = perf_counter_ns()
        sequence = catalog.replay(recorded.graph)
        replayed.append(Replayed(perf_counter_ns() - begin))
        _check(sequence, int(outs[sequence % FRAMES].records[:, Meta.EMITTED].sum()), recorded)
    return Floor(tuple(replayed))


def on_cuda(config: WorkerConfig, found: Manifest, frames: Frames, rounds: list[RecordedRound]) -> Floor:
    """Two of them queued at all times."""
    import torch

    from services.worker.devices.preparation import CudaPreparation

    preparation = CudaPreparation(config, found, frames)
    try:
        catalog, made = preparation.prepare(), preparation.frames
        if made is None:
            raise ContractBreach("a prepared device has frames")
        # First, so that the clocks of a card that has been idle are up.
        copied = bandwidth(WARM_S)
        if made.region is not None:
            opened_once(made.region.handle)
        elif preparation.opened is None:
            raise ContractBreach("no other process has opened memory of this one, and its rounds are slow")
        replayed = _queued(catalog, made, frames, rounds)
        nodes = dict(zip(catalog.order, made.nodes, strict=True))
        return Floor(tuple(replayed), tuple(nodes[i] for i in range(len(nodes))), copied, torch.cuda.get_device_name())
    finally:
        preparation.close()


def _queued(catalog: DeviceCatalog, made: CudaFrames, frames: Frames, rounds: list[RecordedRound]) -> list[Replayed]:
    plans, ends = np.frombuffer(frames.plan.payload, dtype=np.uint8), catalog.ends
    layout, first, launches = frames.completion_layout, catalog.counter, [0] * len(rounds)
    replayed: list[Replayed] = []

    def finish(index: int) -> None:
        sequence = first + index
        ends.wait(sequence)
        took, gap = ends.device_ns(sequence)
        if index % LOOKED_AT == 0 or index >= len(rounds) - FRAMES:
            _check(sequence, emitted(layout, made.read_completions, sequence), rounds[index])
        replayed.append(Replayed(took, gap, launches[index]))

    for index, recorded in enumerate(rounds):
        if index >= FRAMES:
            finish(index - FRAMES)
        _write(plans, catalog.counter, recorded)
        ends.begin(catalog.counter)
        begin = perf_counter_ns()
        sequence = catalog.replay(recorded.graph)
        launches[index] = perf_counter_ns() - begin
        ends.end(sequence)
    for index in range(max(len(rounds) - FRAMES, 0), len(rounds)):
        finish(index)
    return replayed


def bandwidth(seconds: float) -> float:
    """Bytes a nanosecond of a large copy on the current GPU, read and written: the best of so many seconds."""
    import torch

    source = torch.randn(1 << 28, device="cuda")
    target, best = torch.empty_like(source), float("inf")
    until = monotonic() + seconds
    while monotonic() < until:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end) * 1e6)
    return 2 * source.nbytes / best


def _write(plans: np.ndarray, sequence: int, recorded: RecordedRound) -> None:
    size = len(recorded.plan)
    start = sequence % FRAMES * size
    plans[start : start + size] = np.frombuffer(recorded.plan, dtype=np.uint8)


def _check(sequence: int, found: int, recorded: RecordedRound) -> None:
    if recorded.emitted not in (found, UNKNOWN):
        raise ContractBreach(f"round {sequence} emitted {found} tokens, not {recorded.emitted} as recorded")


if __name__ == "__main__":
    main()
