"""Rounds in few kernels, in Triton's interpreter: under random traffic they do what the CPU's programs do.

The same body runs over captured graphs on a card: test_captured_rounds.py.
"""

from __future__ import annotations

from pathlib import Path

import torch

from tests.gpu.places import interpreter
from tests.worker.devices.test_traffic import small_core, twin
from tests.worker.devices.traffic import Traffic


def test_interpreted_rounds_do_what_the_cpu_does(tmp_path: Path) -> None:
    place = interpreter()

    def drive() -> Traffic:
        traffic = Traffic(twin(small_core(tmp_path, False), False), seed=9)
        traffic.run(18)
        return traffic

    with torch.no_grad():
        found: Traffic = place.run(drive)
    assert sum(found.seen[f"emitted {count}"] for count in range(2, 9)) > 3
    assert found.seen["mixed"] > 0
