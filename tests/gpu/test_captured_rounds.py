"""Rounds captured as CUDA graphs: under random traffic they do what the CPU's programs do, and allocate nothing."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from services.worker.devices.cuda import HostFetch
from shared.cuda_regions import register_host
from shared.frames import FRAMES, Meta, completion_frame, plan_frame
from shared.manifest import Manifest, read
from shared.messages.common import Sampling
from shared.regions import create
from tests.fixtures.scripted.recipe import COPIES, make_core
from tests.gpu.captured import CUDA, CudaPeer, FlatModel
from tests.worker.devices.hashed import PackedDrafter, PackedModel
from tests.worker.devices.test_traffic import CPU, drafter_of, model_of, small_core
from tests.worker.devices.traffic import Traffic
from tests.worker.devices.twin import TwinCatalog, buffers, host_over, layouts_of
from tests.worker.host import Host, LanePlan

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    """As the worker runs."""
    with torch.no_grad():
        yield


@pytest.mark.parametrize(("learned", "mirrored"), [(False, False), (True, False), (False, True)])
def test_captured_rounds_do_what_the_cpu_does(
    tmp_path: Path, figure: Callable[[str], None], learned: bool, mirrored: bool
) -> None:
    """One replay takes what the one before left: plans, seeds, lengths and tables change, nothing is captured again."""
    manifest = small_core(tmp_path, learned)
    layouts = layouts_of(manifest)
    drafter = drafter_of(manifest, CUDA) if learned else None
    begin = time.perf_counter()
    peer = CudaPeer(manifest, model_of(manifest, CUDA), drafter, layouts, mirrored)
    figure(f"{len(manifest.graphs)} graphs warmed and captured in {time.perf_counter() - begin:.1f} s")
    peer.count_allocations()
    try:
        parts = PackedModel(model_of(manifest, CPU)), PackedDrafter(drafter_of(manifest, CPU), 7) if learned else None
        frames = buffers(layouts)
        host = host_over(manifest, TwinCatalog(manifest, parts, peer, layouts, frames), layouts, frames)
        traffic = Traffic(host, seed=81)
        traffic.run(250)
        assert peer.allocated == 0, "a replay allocated memory"
        assert {traffic.seen[f"emitted {count}"] > 0 for count in range(8)} == {True}
        assert min(traffic.seen[what] for what in ("mixed", "restored", "recomputed", "fault 32")) > 2
        figure(f"learned={learned}: {host.catalog.counter} rounds equal; {dict(sorted(traffic.seen.items()))}")
    finally:
        peer.close()


def flat_core(folder: Path) -> Manifest:
    """A manifest with SmolLM2's vocabulary and sixteen slots."""
    import msgspec

    made = read(make_core(folder, COPIES, concurrency=16, context_length=1024, prefill_buckets=(32,), mixed_chunk=32))
    geometry = msgspec.structs.replace(made.geometry, vocab_size=FlatModel.vocab_size, hidden_size=576)
    kept = tuple(
        graph
        for graph in made.graphs
        if graph.kind in ("init", "prefill")
        or (graph.kind in ("decode", "speculative") and graph.token_capacity in (1, 4, 8) and graph.batch_capacity != 2)
    )
    return msgspec.structs.replace(made, geometry=geometry, graphs=kept)


KINDS = {
    "greedy": Sampling(temperature=0.0),
    "top_k 20, top_p 0.95": Sampling(temperature=1.0, top_k=20, top_p=0.95, seed=1),
    "top_p 0.95": Sampling(temperature=1.0, top_p=0.95, seed=1),
    "top_p 0.95, hot": Sampling(temperature=5.0, top_p=0.95, seed=1),
    "plain": Sampling(temperature=1.0, seed=1),
    "penalties": Sampling(temperature=1.0, top_k=20, presence_penalty=0.5, seed=1),
    "20 logprobs": Sampling(temperature=1.0, top_k=20, logprobs=20, seed=1),
}


def flat_host(peer: CudaPeer, manifest: Manifest) -> Host:
    """A host over the device's catalog alone."""
    layouts = layouts_of(manifest)
    plans = tuple(plan_frame(layouts[0], peer.plans, index) for index in range(FRAMES))
    completions = tuple(completion_frame(layouts[1], peer.completions(), index) for index in range(FRAMES))
    host = Host(manifest, peer.catalog, plans, completions)  # type: ignore[arg-type]
    original = peer.catalog.replay

    def replay(graph: int) -> int:
        sequence = original(graph)
        peer.completions()
        return sequence

    vars(peer.catalog)["replay"] = replay
    return host


@pytest.mark.timeout(400)
def test_what_a_round_costs_beside_its_model(tmp_path: Path, figure: Callable[[str], None]) -> None:
    manifest = flat_core(tmp_path)
    begin = time.perf_counter()
    peer = CudaPeer(manifest, FlatModel(), None, layouts_of(manifest))
    figure(f"flat: {len(manifest.graphs)} graphs warmed and captured in {time.perf_counter() - begin:.1f} s")
    measure("flat", peer, manifest, figure, KINDS)


@pytest.mark.timeout(400)
def test_what_a_round_of_smollm2_costs(tmp_path: Path, figure: Callable[[str], None]) -> None:
    from compose.bench.random_core import SMOLLM2_135M
    from recipes.smollm2.device_target import DeviceTarget
    from recipes.smollm2.device_weights import random_device_weights

    manifest = flat_core(tmp_path)
    weights = random_device_weights(SMOLLM2_135M, "int8", CUDA, torch.bfloat16)
    model = DeviceTarget(SMOLLM2_135M, weights, manifest.geometry.pages, 16, 128)
    begin = time.perf_counter()
    peer = CudaPeer(manifest, model, None, layouts_of(manifest))
    figure(f"SmolLM2: {len(manifest.graphs)} graphs warmed and captured in {time.perf_counter() - begin:.1f} s")
    usual = "top_k 20, top_p 0.95"
    measure("SmolLM2", peer, manifest, figure, {usual: KINDS[usual]})


def measure(
    what: str, peer: CudaPeer, manifest: Manifest, figure: Callable[[str], None], kinds: dict[str, Sampling]
) -> None:
    """Reports rounds of several shapes, then closes the peer."""
    try:
        launch = peer.catalog.replay
        host = flat_host(peer, manifest)
        for name, sampling in kinds.items():
            for batch, width in ((1, 1), (1, 8), (4, 1), (16, 1), (16, 8)):
                if name != "top_k 20, top_p 0.95" and (batch, width) not in ((1, 1), (16, 1)):
                    continue
                for slot in range(batch):
                    host.start(slot, tuple(range(3, 23)), sampling, 900)
                figure(f"{what}: {name}, B={batch}, W={width}: {timed(host, peer, launch, batch, width)}")
    finally:
        peer.close()


def timed(host: Host, peer: CudaPeer, launch: Callable[[int], int], batch: int, width: int) -> str:
    """Rounds of these lanes with two queued: time a round on the device, and of a launch on the host."""
    rounds, stream = 300, peer.frames.stream
    graph = host.manifest.index_of("speculative", batch, width)
    for _ in range(FRAMES):
        plan = host.plan(graph)
        host.fill_lanes(plan, [LanePlan(slot, width) for slot in range(batch)])
        launch(graph)
    stream.synchronize()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(rounds)]
    spent = 0.0
    for index in range(rounds):
        if index >= 2:
            events[index - 2].synchronize()
        frame = host.plans[peer.catalog.counter % FRAMES]
        frame.head[0] = frame.tail[0] = peer.catalog.counter
        begin = time.perf_counter()
        launch(graph)
        spent += time.perf_counter() - begin
        events[index].record(stream)
    stream.synchronize()
    last = completion_frame(layouts_of(host.manifest)[1], peer.completions(), (peer.catalog.counter - 1) % FRAMES)
    assert {int(row[Meta.EMITTED]) for row in last.records[:batch]} == {1}
    each = sorted(one.elapsed_time(two) * 1e3 for one, two in itertools.pairwise(events[20:]))
    nodes = peer.frames.nodes
    return (
        f"{each[len(each) // 2]:.1f} us a round (p99 {each[len(each) * 99 // 100]:.1f}), "
        f"launch {spent / rounds * 1e6:.1f} us, nodes {min(nodes)} to {max(nodes)}"
    )


def test_a_frame_written_while_it_is_fetched_is_whole_or_refused(figure: Callable[[str], None]) -> None:
    """Two equal ends prove a frame, because they are fetched in the order that reverses its writer's."""
    layout = layouts_of(small_manifest())[0]
    words, tail = layout.nbytes // 8, layout.offset_of("tail") // 8
    region = create("race", FRAMES * layout.nbytes, 0xACE)
    registration = register_host(region)
    fetch = HostFetch(registration.pointer, words, tail)
    counter, taken = torch.zeros(1, dtype=torch.int64, device=CUDA), torch.zeros(words, dtype=torch.int64, device=CUDA)
    frame, dice, seen = np.frombuffer(region.payload, dtype=np.int64)[:words], Random(3), Counter[str]()
    frame[:] = -1
    try:
        for sequence in range(0, 4000, 2):
            counter.fill_(sequence)
            torch.cuda.synchronize()
            torch.cuda._sleep(200_000)
            fetch(counter, taken, words)
            spin(dice.random() * 180e-6)
            frame[0] = frame[tail] = -1
            for start in range(1, tail, 32):
                frame[start : min(start + 32, tail)] = sequence
            frame[0] = sequence
            frame[tail] = sequence
            torch.cuda.synchronize()
            found = taken.cpu()
            whole = int(found[0]) == int(found[tail]) == sequence
            seen["whole" if whole else "torn" if found[0] != found[tail] else "another"] += 1
            assert not whole or set(found[1:tail].tolist()) == {sequence}
        figure(f"2,000 frames written while they were fetched: {dict(seen)}, none taken wrongly")
        assert set(seen) == {"whole", "torn", "another"}
    finally:
        registration.close()
        del frame
        region.close()


def spin(seconds: float) -> None:
    """Waits without sleeping."""
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        pass


def small_manifest() -> Manifest:
    """Of a core that need not be kept."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return small_core(Path(folder), False)
