"""The worker of the toy: regions, state, and one captured graph that is replayed for every round."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from shared.cuda_driver import Driver, bind
from shared.cuda_regions import CudaRegion, Registration, create_cuda, register_host
from shared.frames import FRAMES, METADATA, ROW_TOKENS
from shared.regions import PosixRegion, create
from tests.gpu import toy_kernels as kernels
from tests.gpu import toy_words
from tests.gpu.toy_plans import COMPLETION, GEOMETRY, PLAN, SLOTS, Records
from tests.gpu.toy_rules import WORDS, Slot, first_slot, signed

_instances = itertools.count(0x70F)
JOURNAL_ROUNDS = 8192
_RECORD = METADATA + ROW_TOKENS


@dataclass(frozen=True, slots=True)
class DeviceWords:
    """Device memory that is not torch's, in the form torch wraps."""

    pointer: int
    count: int

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.count,), "typestr": "<i8", "data": (self.pointer, False), "version": 3}


class ToyWorker:
    """`work` and `busy_cycles` are captured before verification: what a model would spend its time with."""

    def __init__(
        self,
        *,
        mirrored: bool = False,
        busy_cycles: int = 0,
        work: Callable[[], object] | None = None,
    ) -> None:
        instance = next(_instances)
        self.driver = self._driver()
        self.plans = create("plans", FRAMES * PLAN.nbytes, instance)
        self.completions = create_cuda(FRAMES * COMPLETION.nbytes, instance, self.driver)
        self.mirror = create("mirror", FRAMES * COMPLETION.nbytes, instance) if mirrored else None
        self._registered: list[Registration] = []
        self._plan_words, self._mirror_words = map(self._register, (self.plans, self.mirror))
        self._work, self._busy_cycles = work, busy_cycles
        self._out = self._wrap(self.completions.pointer, FRAMES * COMPLETION.nbytes // 8)
        self._plan = self._zeros(PLAN.nbytes // 8)
        self._ends, self._faults, self.sequence = self._zeros(2), self._zeros(1), self._zeros(1)
        self._slots, self._states = self._zeros(SLOTS, 8), self._zeros(SLOTS, WORDS)
        self._exports = self._zeros(GEOMETRY.snapshot_slots, WORDS)
        self._verdicts = self._zeros(SLOTS, int(toy_words.V_COLUMNS.value))
        self._journal = self._zeros(JOURNAL_ROUNDS, 1 + SLOTS * _RECORD)
        self.replay = self._capture()
        self.reset()

    def _driver(self) -> Driver:
        return bind()

    def _zeros(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int64, device="cuda")

    def _wrap(self, pointer: int, count: int) -> torch.Tensor:
        return torch.as_tensor(DeviceWords(pointer, count), device="cuda")

    def _register(self, region: PosixRegion | None) -> int:
        if region is None:
            return 0
        self._registered.append(register_host(region, self.driver))
        return self._registered[-1].pointer

    def _capture(self) -> Callable[[], None]:
        """Compiles on a first run outside the graph, then captures. Plain torch memory may hold the toy's state."""
        self.stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(self.stream):
            self._round()
        self.stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            self._round()

        def replay() -> None:
            with torch.cuda.stream(self.stream):
                graph.replay()

        return replay

    def _round(self) -> None:
        one, lanes = (1,), (SLOTS,)
        words, blocks = PLAN.nbytes // 8, -(-COMPLETION.nbytes // 8192)
        tail, head = toy_words.TAIL.value, toy_words.HEAD.value
        out_tail, out_head = toy_words.OUT_TAIL.value, toy_words.OUT_HEAD.value
        kernels.fetch_word[one](self._plan_words, self.sequence, self._ends, tail, num_warps=1)
        kernels.fetch_body[(-(-words // 1024),)](self._plan_words, self.sequence, self._plan, 1024)
        kernels.fetch_word[one](self._plan_words, self.sequence, self._ends[1:], head, num_warps=1)
        kernels.clear_frame[one](self.sequence, self._out, self._ends, self._faults, num_warps=1)
        if self._busy_cycles:
            torch.cuda._sleep(self._busy_cycles)
        if self._work is not None:
            self._work()
        plan32 = self._plan.view(torch.int32)
        kernels.verify[lanes](self._plan, plan32, self._faults, self._slots, self._states, self._verdicts, num_warps=1)
        kernels.commit[lanes](
            self._plan, self._faults, self.sequence, self._slots, self._states, self._exports, self._verdicts,
            self._out, num_warps=1,
        )  # fmt: skip
        kernels.journal[one](self._plan, self.sequence, self._out, self._journal, JOURNAL_ROUNDS, 1024)
        kernels.publish_end[one](self.sequence, self._out, out_tail, num_warps=1)
        kernels.publish_end[one](self.sequence, self._out, out_head, num_warps=1)
        if self._mirror_words:
            kernels.mirror[(blocks,)](self.sequence, self._out, self._mirror_words, False, 1024)
            kernels.mirror[(blocks,)](self.sequence, self._out, self._mirror_words, True, 1024)
        kernels.advance[one](self.sequence, num_warps=1)

    def reset(self, sequence: int = 0) -> None:
        """Puts the first slots back and empties everything else; not while a round runs."""
        # Zeroes would read as a whole plan for round 0.
        self.plans.payload[:] = b"\xff" * self.plans.handle.nbytes
        for tensor in (self._exports, self._journal, self._verdicts):
            tensor.zero_()
        self.sequence.fill_(sequence)
        first = [first_slot(index) for index in range(SLOTS)]
        self._slots.copy_(torch.tensor([slot_row(slot) for slot in first]))
        self._states.copy_(torch.tensor([[signed(word) for word in slot.state] for slot in first]))
        self.settle()

    def event(self) -> torch.cuda.Event:
        """Marks the end of the replay that was launched last."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(self.stream)
        return event

    def idle(self, cycles: int) -> None:
        """Holds the stream up, so that the host comes before what it launches next."""
        with torch.cuda.stream(self.stream):
            torch.cuda._sleep(cycles)

    def replay_pair(self) -> None:
        """Two replays, both queued before the first one begins, and their end."""
        self.idle(400_000)
        self.replay()
        self.replay()
        self.settle()

    def settle(self) -> None:
        """Waits for everything that was launched."""
        torch.cuda.synchronize()

    def slots(self) -> list[Slot]:
        """The slots as the device has them."""
        states = self._states.cpu().numpy().view(np.uint64).tolist()
        return [
            Slot(epoch, request, consumed, generated, previous, pending, tuple(state))
            for (epoch, request, consumed, generated, previous, pending, _, _), state in zip(
                self._slots.tolist(), states, strict=True
            )
        ]

    def exports(self) -> list[tuple[int, ...]]:
        """Every export row; zeroes where nothing was exported."""
        return [tuple(row) for row in self._exports.cpu().numpy().view(np.uint64).tolist()]

    def journal(self, rounds: Iterable[int]) -> list[tuple[int, Records]]:
        """Plan checksum and records of past rounds."""
        kept = self._journal.tolist()
        found = []
        for sequence in rounds:
            page = kept[sequence % JOURNAL_ROUNDS]
            found.append((page[0], tuple(tuple(page[at : at + _RECORD]) for at in range(1, len(page), _RECORD))))
        return found

    def close(self) -> None:
        """Gives everything back, registrations before the memory they name."""
        self.settle()
        for registration in self._registered:
            registration.close()
        regions: tuple[PosixRegion | CudaRegion | None, ...] = (self.plans, self.mirror, self.completions)
        for region in regions:
            if region is not None:
                region.close()


def slot_row(slot: Slot) -> list[int]:
    """A slot as its row in the device's table."""
    return [slot.epoch, slot.request, slot.consumed, slot.generated, slot.previous, slot.pending, 0, 0]
