"""Rounds in few kernels, in Triton's interpreter: under random traffic they do what the CPU's programs do.

The same body runs over captured graphs on a card: test_captured_rounds.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from shared.frames import Fault, Meta
from shared.messages.common import Sampling
from tests.gpu.places import interpreter
from tests.worker.devices.test_traffic import small_core, twin
from tests.worker.devices.traffic import Traffic
from tests.worker.host import Record


@pytest.mark.parametrize("learned", [False, True])
def test_interpreted_rounds_do_what_the_cpu_does(tmp_path: Path, learned: bool) -> None:
    place = interpreter()

    def drive() -> Traffic:
        traffic = Traffic(twin(small_core(tmp_path, learned), learned), seed=9)
        traffic.run(18)
        return traffic

    with torch.no_grad():
        found: Traffic = place.run(drive)
    assert sum(found.seen[f"emitted {count}"] for count in range(2, 9)) > 3
    assert found.seen["mixed"] > 0
    assert learned or found.seen["fault 32"] > 0
    assert not learned or sum(found.seen[f"sources {bits}"] for bits in (1, 3, 5)) > 3


@pytest.mark.parametrize("learned", [False, True])
def test_interpreted_snapshots_are_what_the_cpu_takes(tmp_path: Path, learned: bool) -> None:
    """By the graph of their own, of a request that a stale plan leaves alone; what is restored of them goes on."""
    place = interpreter()

    def drive() -> tuple[Record, ...]:
        host = twin(small_core(tmp_path, learned), learned)
        prompt, sampling = tuple(range(3, 40)), Sampling(temperature=1.0, top_p=0.9, seed=5, presence_penalty=0.5)
        host.start(0, prompt, sampling)

        def snapshot(row: int) -> dict[int, Record]:
            graph = host.manifest.index_of("snapshot", 1, 0)
            plan = host.plan(graph)
            host.fill_chunk(plan, 0, 0, (), 0, -1, -1)
            plan.snapshot_row[0] = row
            return host.replay(graph)

        taken, nowhere = snapshot(1)[0], snapshot(-1)
        host.epochs[0] += 1
        stale = snapshot(0)[0]
        assert not nowhere
        host.init(0, len(prompt), sampling, 20, ())
        return taken, stale, host.restored(0, 1, len(prompt), prompt[:16]), host.resumed(0)

    with torch.no_grad():
        taken, stale, restored, resumed = place.run(drive)
    assert (taken.faults, stale.faults) == (Fault.NONE, Fault.STALE_EPOCH)
    assert restored[Meta.CONSUMED] == resumed[Meta.CONSUMED] == 37
    assert len(resumed.tokens) == 1
