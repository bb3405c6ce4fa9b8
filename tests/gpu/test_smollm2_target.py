"""SmolLM2 on the device against the CPU's target with the same int8 weights, teacher-forced.

A tiny random model: a prompt in two chunks, one row at a time, and lanes of several rows beside a padding lane.

Tolerances are fixed beforehand, of ||found - wanted|| / ||wanted|| over the logits of a call. The CPU rounds each
activation to 14 bits of its row's largest (2^-15 of it at most, about 2^-13 of a typical one); so float32 on the other
side may lie ten layers' inputs of that apart: 1e-2 leaves a factor of eight. bfloat16 rounds to 2^-9 and there are ten
roundings one behind the other, independent ones: 2^-9 * sqrt(10) = 6e-3 each way, and 3e-2 leaves a factor of five.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor

from recipes.components.device_model import DeviceRows
from recipes.components.model import Lane, rows_of
from recipes.declaration import LoadConfig
from recipes.smollm2.architecture import Architecture, Settings, WeightFormat
from recipes.smollm2.device_target import DeviceTarget
from recipes.smollm2.device_weights import read_device_weights
from recipes.smollm2.memory import device_items
from recipes.smollm2.target import Target
from recipes.smollm2.weights import FILE, read_weights, write_weights
from tests.gpu.places import Place, distance

TINY = Architecture(
    vocab_size=40,
    hidden_size=48,
    layers=2,
    query_heads=3,
    key_heads=1,
    head_size=16,
    intermediate_size=40,
    context_length=256,
    rope_theta=5e3,
    norm_epsilon=1e-5,
    tied=False,
)
PAGES, TABLE = 12, 4


@dataclass(frozen=True)
class RandomCheckpoint:
    """As much of a `Checkpoint` as `write_weights` asks for."""

    architecture: Architecture

    def tensor(self, name: str) -> Tensor:
        shape = self.architecture.tensors()[name]
        source = torch.Generator().manual_seed(sum(map(ord, name)))
        drawn = torch.randn(shape, generator=source)
        return 1 + 0.2 * drawn if len(shape) == 1 else 1.5 * drawn * shape[1] ** -0.5


@dataclass
class Pair:
    """The same model twice, over tables that name other pages."""

    place: Place
    cpu: Target
    device: DeviceTarget

    def both(
        self, tables: list[list[int]], first: list[int], tokens: list[Tensor], width: int
    ) -> tuple[Tensor, Tensor]:
        """Logits of all valid rows, by the CPU and by the device, which gets a padding lane at the end."""
        lanes = [Lane(lane, 0, len(own), first[lane], torch.tensor(tables[lane])) for lane, own in enumerate(tokens)]
        wanted = torch.cat(
            [self.cpu.forward(rows_of(own, (lane,))) for own, lane in zip(tokens, lanes, strict=True)],
        )
        count = len(tokens) + 1
        padded = torch.full((count, width), 5)
        for lane, own in enumerate(tokens):
            padded[lane, : len(own)] = own
        rows = DeviceRows(
            tokens=padded.flatten(),
            slots=torch.tensor([*range(len(tokens)), -1]),
            first=torch.tensor([*first, 3]),
            counts=torch.tensor([*map(len, tokens), 1]),
            tables=torch.tensor([*tables, tables[0]], dtype=torch.int32),
            width=width,
        )
        valid = torch.cat([torch.arange(len(own)) + lane * width for lane, own in enumerate(tokens)])
        found = self.place.run(lambda rows: self.device.logits(self.device.forward(rows)), rows)
        return self.cpu.logits(wanted), found[valid]


@pytest.fixture
def pair(place: Place, tmp_path: Path) -> Pair:
    write_weights(RandomCheckpoint(TINY), tmp_path / FILE, "int8", lambda what, done, total: None)  # type: ignore[arg-type]
    cpu = Target(TINY, read_weights(tmp_path, TINY, "int8", True), LoadConfig(False, 4, PAGES, 0))
    weights = read_device_weights(tmp_path, TINY, "int8", place.device, place.dtype)
    return Pair(place, cpu, DeviceTarget(TINY, weights, PAGES, lanes=4, most_rows=64))


def test_chunks_single_rows_and_lanes_of_several_rows_agree_with_the_cpu(pair: Pair) -> None:
    text = torch.randint(0, TINY.vocab_size, (2, 70))
    tables = [[7, 2, 9, 4], [1, 8, 0, 3]]
    tolerance = 1e-2 if pair.place.dtype == torch.float32 else 3e-2

    def agree(wanted: Tensor, found: Tensor) -> None:
        assert distance(found, wanted) < tolerance
        assert (found.argmax(1) == wanted.argmax(1)).float().mean() > 0.8

    # Positions that nobody wrote hold zeros in both: they count, as others would.
    agree(*pair.both(tables[:1], [0], [text[0, :18]], 18))
    agree(*pair.both(tables[:1], [50], [text[0, 50:66]], 17))
    agree(*pair.both(tables[1:], [63], [text[1, 63:64]], 1))
    agree(*pair.both(tables, [66, 64], [text[0, 66:69], text[1, 64:65]], 3))


def test_with_kernels_of_one_shape_a_rows_bits_are_its_own(place: Place, tmp_path: Path) -> None:
    """What `--deterministic` promises on a device: alone, among other lanes' rows or inside a chunk, bit for bit."""
    # Over a page's border on the card; the interpreter takes a millisecond a program.
    small = place.device.type == "cpu"
    shape, lead, last = (msgspec.structs.replace(TINY, layers=1), 3, 2) if small else (TINY, 62, 6)
    write_weights(RandomCheckpoint(shape), tmp_path / FILE, "int8", lambda what, done, total: None)  # type: ignore[arg-type]
    weights = read_device_weights(tmp_path, shape, "int8", place.device, place.dtype)
    text, other = torch.randint(0, TINY.vocab_size, (2, 70))

    def said(parts: list[int], company: int) -> Tensor:
        """Logits of the last rows of `text`, fed in `parts`, all but the first with lanes of `other` beside it."""
        device = DeviceTarget(shape, weights, PAGES, lanes=4, most_rows=80, invariant=True)
        found, start = [], 0
        for count in parts:
            beside = company if start else 0
            tokens = torch.stack([text[start : start + count], *[other[start : start + count]] * beside])
            rows = DeviceRows(
                tokens=tokens.flatten(),
                slots=torch.arange(beside + 1),
                first=torch.full((beside + 1,), start),
                counts=torch.tensor([count, *[max(1, count - 1)] * beside]),
                tables=torch.tensor([[7, 2, 9, 4], [1, 8, 0, 3], [5, 6, 10, 11]][: beside + 1], dtype=torch.int32),
                width=count,
            )
            found.append(place.run(lambda rows: device.logits(device.forward(rows)), rows)[:count])
            start += count
        return torch.cat(found)[-last:]

    alone = said([lead, *[1] * last], 0)
    for parts in ([lead, last],) if small else ([lead, last], [lead, 1, last - 1], [20, lead + last - 20]):
        assert torch.equal(said(parts, 2), alone)


@pytest.mark.gpu
def test_one_capture_serves_other_lengths_tables_and_tokens(pair: Pair) -> None:
    """Replays with everything changed that may change equal eager forwards bit for bit, and allocate nothing."""
    text = torch.randint(0, TINY.vocab_size, (2, 70))
    pair.both([[7, 2, 9, 4], [1, 8, 0, 3]], [0, 0], [text[0], text[1]], 70)
    device = pair.place.device
    rows = DeviceRows(
        tokens=torch.zeros(4, dtype=torch.int64, device=device),
        slots=torch.zeros(2, dtype=torch.int64, device=device),
        first=torch.zeros(2, dtype=torch.int64, device=device),
        counts=torch.ones(2, dtype=torch.int64, device=device),
        tables=torch.zeros(2, TABLE, dtype=torch.int32, device=device),
        width=2,
    )
    once: Callable[[], Tensor] = lambda: pair.device.logits(pair.device.forward(rows))  # noqa: E731
    once()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = once()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for slots, first, counts, tables in (
        ([0, 1], [70, 20], [2, 2], [[7, 2, 9, 4], [1, 8, 0, 3]]),
        ([1, -1], [63, 0], [1, 0], [[1, 8, 0, 3], [7, 2, 9, 4]]),
        ([3, 2], [70, 70], [2, 1], [[7, 2, 4, 4], [1, 8, 3, 3]]),
    ):
        for name, value in (("slots", slots), ("first", first), ("counts", counts), ("tables", tables)):
            getattr(rows, name).copy_(torch.tensor(value))
        rows.tokens.copy_(torch.randint(0, TINY.vocab_size, (4,)))
        graph.replay()
        replayed = found.clone()
        assert torch.equal(replayed, once())
    assert torch.cuda.memory_allocated() <= before + 4 * found.nbytes


@pytest.mark.parametrize("form", ["int8", "float32"])
def test_the_bill_of_a_gpu_is_what_is_held_there(tmp_path: Path, form: WeightFormat) -> None:
    """Weights and pages to the byte; the device is this CPU, in a card's type."""
    write_weights(RandomCheckpoint(TINY), tmp_path / FILE, form, lambda what, done, total: None)  # type: ignore[arg-type]
    weights = read_device_weights(tmp_path, TINY, form, torch.device("cpu"), torch.bfloat16)
    norms = [weights.norm, *(one for layer in weights.layers for one in (layer.attention_norm, layer.mlp_norm))]
    held = weights.read_bytes + weights.embedding.nbytes + sum(norm.nbytes for norm in norms)
    billed = {item.name: item.nbytes for item in device_items(Settings(TINY, form), PAGES, 4, 32, 64)}
    assert billed["weights"] == held
    assert billed["pages"] == sum(pages.nbytes for pages in DeviceTarget(TINY, weights, PAGES, 4, 64)._pages)
