"""The tiny Qwen3.8 on the device against the CPU's target over the same checkpoint, teacher-forced, round by round.

Every kind of state goes through what rounds do to it: a prompt in chunks, rows of which some are rejected, two lanes
beside a padding lane, a boundary export inside a kept prefix, and going on from the snapshot. One layer of each kind:
the interpreter takes a millisecond a program.

Tolerances are fixed beforehand, of ||found - wanted|| / ||wanted|| over a row's logits. float32 on both sides differs
by the order of sums alone, about 1e-6 a product and some thirty products in a row: 1e-3 for the worst row leaves room
for normed differences of near-equal numbers. bfloat16 rounds to 2^-9 some thirty times, 1e-2 in all; but where two
experts or groups lie nearer than that another one is chosen and the row is another row: the median stays below 5e-2.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from recipes.components.device_model import DeviceRows
from recipes.components.model import Lane, rows_of
from recipes.declaration import LoadConfig
from recipes.qwen38.checkpoint import Checkpoint
from recipes.qwen38.device_target import DeviceTarget
from recipes.qwen38.device_weights import DeviceReader
from recipes.qwen38.target import Target
from recipes.qwen38.tiny import write_tiny
from recipes.qwen38.weights import WeightReader, read_target
from tests.gpu.places import Place, distance
from tests.gpu.smallest import smallest

SLOTS, SNAPSHOTS, PAGES = 3, 2, 9
TABLES = [[7, 2, 5], [1, 8, 0]]
NOBODY = -1


@dataclass
class Pair:
    """The same checkpoint twice."""

    place: Place
    cpu: Target
    device: DeviceTarget
    distances: list[float]

    def round(
        self, width: int, slots: list[int], first: list[int], texts: list[Tensor], kept: list[int], export: int = NOBODY
    ) -> None:
        """Forwards a lane for each text, and a padding lane; exports lane 0 after its first row to row `export`."""
        wanted: list[Tensor] = []
        for slot, start, own, count in zip(slots, first, texts, kept, strict=True):
            lane = Lane(slot, 0, len(own), start, torch.tensor(TABLES[slot]))
            wanted.append(self.cpu.logits(self.cpu.forward(rows_of(own, (lane,)))))
            if export >= 0 and slot == slots[0]:
                self.cpu.export(lane, 1, export)
            self.cpu.commit(lane, count)
        padding = [] if width > 4 else [NOBODY]
        lanes = len(slots) + len(padding)
        tokens = torch.full((lanes, width), 9)
        for index, own in enumerate(texts):
            tokens[index, : len(own)] = own
        rows = DeviceRows(
            tokens=tokens.flatten(),
            slots=torch.tensor([*slots, *padding]),
            first=torch.tensor([*first, 5][:lanes]),
            counts=torch.tensor([*map(len, texts), 1][:lanes]),
            tables=torch.tensor([TABLES[max(slot, 0)] for slot in [*slots, *padding]], dtype=torch.int32),
            width=width,
        )
        exported = torch.tensor([export] + [NOBODY] * (lanes - 1))

        def run(rows: DeviceRows, kept: Tensor, exported: Tensor) -> Tensor:
            found = self.device.logits(self.device.forward(rows))
            if export >= 0:
                self.device.export(rows, (kept > 0).long(), exported)
            self.device.commit(rows, kept)
            return found

        found = self.place.run(run, rows, torch.tensor([*kept, 0][:lanes]), exported).view(lanes, width, -1)
        for index, logits in enumerate(wanted):
            for row, one in enumerate(logits):
                self.distances.append(distance(found[index, row], one))

    def here(self, *rows: int) -> list[Tensor]:
        return [torch.tensor([row], device=self.place.device) for row in rows]


@pytest.fixture
def pair(place: Place, tmp_path: Path) -> Pair:
    architecture = smallest()
    write_tiny(tmp_path, architecture, seed=1)
    tensors = Checkpoint(tmp_path).tensors
    weights = read_target(WeightReader(architecture, tensors))
    cpu = Target(architecture, weights, LoadConfig(False, SLOTS, PAGES, SNAPSHOTS))
    device = DeviceTarget(
        architecture, DeviceReader(architecture, tensors, place.device, place.dtype).target(), SLOTS, SNAPSHOTS, PAGES,
        positions=256,
    )  # fmt: skip
    return Pair(place, cpu, device, [])


def test_rounds_of_all_kinds_agree_with_the_cpu(pair: Pair) -> None:
    text = torch.randint(0, 319, (2, 90))
    text[0, 11] = 319  # n-gram history ends here
    for slot in (0, 1):
        pair.cpu.reset(slot)
        pair.place.run(pair.device.reset, torch.tensor([slot]))
    pair.round(9, [0], [0], [text[0, :9]], [9])
    pair.round(9, [0], [9], [text[0, 9:18]], [9])
    pair.round(3, [0, 1], [18, 0], [text[0, 18:21], text[1, :3]], [2, 0])
    # What was rejected comes again; lane 0 leaves its first row's state in snapshot 1.
    pair.round(3, [0, 1], [20, 0], [text[0, 20:23], text[1, 40:43]], [3, 3], export=1)
    # Slot 0 goes on from the snapshot, inside a group that it completes: position 21, whose pages are still its own.
    pair.cpu.restore(1, 0)
    pair.place.run(pair.device.restore, torch.tensor([1]), torch.tensor([0]))
    pair.round(3, [0], [21], [text[0, 50:53]], [3])
    # A snapshot of the committed state, and back.
    pair.cpu.snapshot(1, 0)
    pair.place.run(pair.device.snapshot, torch.tensor([1]), torch.tensor([0]))
    pair.round(1, [1], [3], [text[1, 43:44]], [1])
    pair.cpu.restore(0, 1)
    pair.place.run(pair.device.restore, torch.tensor([0]), torch.tensor([1]))
    pair.round(2, [1], [3], [text[1, 60:62]], [1])
    found = torch.tensor(pair.distances)
    assert not found.isnan().any()
    if pair.place.dtype == torch.float32:
        assert found.max() < 1e-3
    else:
        # An expert or a group that is chosen otherwise for a rounding changes a whole row of so small a model.
        assert found.median() < 5e-2
    assert not any(state.missing.any() for state in pair.device.pools.index.values())


def test_nobody_is_named_by_a_negative_row(pair: Pair) -> None:
    """Reset, snapshot and restore of row -1 change no row of anyone."""
    device = pair.device
    for pool in device.pools._all():
        pool.copy_(torch.randint(1, 100, pool.shape))
    before = [pool[: SLOTS + SNAPSHOTS].clone() for pool in device.pools._all()]
    nobody, somebody = pair.here(NOBODY, 1)
    device.reset(nobody)
    device.snapshot(nobody, somebody)
    device.snapshot(somebody, nobody)
    device.restore(nobody, somebody)
    device.restore(somebody, nobody)
    for old, pool in zip(before, device.pools._all(), strict=True):
        assert torch.equal(pool[: SLOTS + SNAPSHOTS], old)
    device.snapshot(somebody, pair.here(0)[0])
    for old, pool in zip(before, device.pools._all(), strict=True):
        assert torch.equal(pool[SLOTS], old[1])
