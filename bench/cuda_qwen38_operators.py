"""GPU time of Qwen3.8's operators at full size, each alone in a captured graph: python3 bench/cuda_qwen38_operators.py

One layer's worth of each with random contents, so that a round's parts can be ranked before there is one. Lines: the
operator, lanes B and rows W, microseconds (median), and the bytes that it must move over the copy bandwidth of this
run. Weights are larger than the card's cache only for the experts; the others are a lower bound.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bench.replays import captured, copy_bandwidth, lanes_at, microseconds
from recipes.components.device_model import DeviceRows
from recipes.components.gpu import experts, recurrence, selection, streams, verified_delta
from recipes.components.gpu.rows import open_rows
from recipes.components.hyperconnection import Mixer
from recipes.components.indexed_attention import Indexer
from recipes.components.paged_attention import Heads

HIDDEN, STREAMS, LOW, INNER, EXPERTS, TOP = 2560, 4, 320, 640, 512, 10
DELTA = recurrence.DeltaShape(key_heads=16, value_heads=48, key=128, value=128)
CHANNELS = 2 * 16 * 128 + 48 * 128
INDEXER = Indexer(heads=4, size=128, ratio=4, budget=512, rotary=64, theta=1e7, epsilon=1e-6)
HEADS = Heads(24, 2, 256)
SLOTS = 4


def drawn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def rows_at(lanes: int, width: int, position: int) -> DeviceRows:
    """Lanes with as many pages as they need."""
    return lanes_at(lanes, width, position, (lanes, (position + width) // 64 + 1))


def timed(operator: Callable[[], object]) -> float:
    return microseconds(captured(operator))


def recurrent(lanes: int, width: int) -> dict[str, tuple[float, float]]:
    """Operator to (microseconds, bytes)."""
    rows, count = rows_at(lanes, width, 256), lanes * width
    states, pool = drawn(SLOTS, 48, 128, 128, dtype=torch.float32), drawn(SLOTS, 3, CHANNELS, dtype=torch.float32)
    projected, taps = drawn(count, CHANNELS + 48 * 128 + 96), drawn(CHANNELS, 4, dtype=torch.float32)
    gates = recurrence.DeltaGates(torch.zeros(48, device="cuda"), torch.zeros(48, device="cuda"))
    net = verified_delta.DeltaNet(taps, gates, torch.ones(128, device="cuda"), 1e-6)
    state = verified_delta.DeltaState(states, pool)
    records = recurrence.Records(
        states.new_empty(count, 16, 128), states.new_empty(count, 48, 128), states.new_empty(count, 48),
        states.new_empty(0),
    )  # fmt: skip
    state_bytes = lanes * 48 * 128 * 128 * 4

    def verified() -> Tensor:
        return verified_delta.verified_delta(net, state, projected, rows, DELTA, records)

    return {
        "delta": (timed(verified), state_bytes),
        "recover": (
            timed(lambda: recurrence.recover(states, records, rows, rows.counts, rows.slots, DELTA)),
            2.0 * state_bytes,
        ),
    }


def wide(lanes: int, width: int, held: experts.PackedExperts) -> dict[str, tuple[float, float]]:
    count = lanes * width
    plain = Mixer(
        drawn(STREAMS * HIDDEN), drawn(LOW, STREAMS * HIDDEN), drawn(STREAMS * HIDDEN, LOW),
        drawn(STREAMS, STREAMS * HIDDEN), STREAMS, 1e-6,
    )  # fmt: skip
    mixer = streams.DeviceMixer.of(plain, torch.bfloat16)
    state, x, gate = drawn(count, STREAMS * HIDDEN), drawn(count, HIDDEN), drawn(count, dtype=torch.float32)
    weights, chosen = experts.route(drawn(count, EXPERTS, dtype=torch.float32), TOP)
    mixed, strengths = streams.mix(mixer, state, torch.bfloat16)
    union = int(torch.bincount(chosen.flatten()).count_nonzero())
    read = union * (held.gate_up[0].nbytes + held.down[0].nbytes) * 9 / 8
    return {
        "mix": (timed(lambda: streams.mix(mixer, state, torch.bfloat16)), mixer.down.nbytes * 2.0),
        "feed": (timed(lambda: streams.feed(state, strengths, mixed)), state.nbytes * 2.0),
        "experts": (timed(lambda: experts.mixture(x, held, weights, chosen, x, gate)), read),
    }


def sparse(lanes: int, width: int, position: int) -> dict[str, tuple[float, float]]:
    rows, count = rows_at(lanes, width, position), lanes * width
    _, placed = open_rows(rows, drawn(16, 8))
    pool = rows.tables.numel()
    state = selection.IndexState(
        drawn(SLOTS, 12, 128),
        torch.full((SLOTS, 12), -1, device="cuda"),
        drawn(pool * 16, 128),
        torch.zeros(lanes, dtype=torch.int32, device="cuda"),
    )
    pages, projected = drawn(pool + 1, 2, 2, 64, 256), drawn(count, 24 * 512)
    queries, index_queries = drawn(count, 24, 256), drawn(count, 4, 128)
    chosen = selection.select(index_queries, state, placed, INDEXER)
    return {
        f"select at {position}": (
            timed(lambda: selection.select(index_queries, state, placed, INDEXER)),
            lanes * position / 4 * 256.0,
        ),
        f"attend at {position}": (
            timed(lambda: selection.attend_chosen(queries, projected, pages, placed, chosen, INDEXER, HEADS)),
            count * min(position, 2048) * 2 * 2 * 256 * 2.0,
        ),
    }


def main() -> None:
    bandwidth = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, copy {bandwidth / 1e6:.2f} TB/s")
    held = experts.PackedExperts(
        gate_up=torch.randint(0, 256, (EXPERTS, 2 * INNER, HIDDEN // 2), dtype=torch.uint8, device="cuda"),
        gate_up_scales=torch.randint(40, 60, (EXPERTS, 2 * INNER, HIDDEN // 16), dtype=torch.uint8, device="cuda"),
        gate_up_singles=torch.ones(EXPERTS, 2, device="cuda"),
        down=torch.randint(0, 256, (EXPERTS, HIDDEN, INNER // 2), dtype=torch.uint8, device="cuda"),
        down_scales=torch.randint(40, 60, (EXPERTS, HIDDEN, INNER // 16), dtype=torch.uint8, device="cuda"),
        down_singles=torch.ones(EXPERTS, device="cuda"),
        top=TOP,
    )
    for lanes, width in ((1, 1), (1, 8), (4, 8)):
        found = recurrent(lanes, width) | wide(lanes, width, held)
        for position in (1024, 8192, 65536):
            found |= sparse(lanes, width, position)
        for name, (took, moved) in found.items():
            print(f"{name:16} B {lanes} W {width} {took:8.1f} us, bound {moved / bandwidth:7.2f}", flush=True)


if __name__ == "__main__":
    main()
