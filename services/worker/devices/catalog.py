"""The graph catalog of a device: the rounds of a core's graphs over plan and completion frames, captured and frozen.

Runs in the worker's launch thread; has what `services/worker/catalog.py` has. How a round is captured and replayed is
the device's affair: on a CPU it is called again, on a GPU it is a CUDA graph (`cuda.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from recipes.components.device_drafter import DeviceDrafter
from recipes.components.device_model import DeviceModel, Faulting
from recipes.components.device_state import DeviceState
from recipes.components.gpu.launch import runs_triton
from services.worker.devices.completion import DeviceCompletion
from services.worker.devices.fused import FusedRounds
from services.worker.devices.parts import Parts
from services.worker.devices.plan import Fetch, plan_tensors
from services.worker.devices.programs import DevicePrograms
from services.worker.devices.snapshots import DeviceSnapshots
from shared.errors import ContractBreach
from shared.frames import Fault, Layout
from shared.manifest import Manifest

Round = Callable[[], None]


class Ends(Protocol):
    """When rounds begin and end on a device; a round is known by its sequence until `depth` others were launched."""

    depth: int

    def begin(self, sequence: int) -> None:
        """Just before the round is launched."""
        ...

    def end(self, sequence: int) -> None:
        """Just after it was launched."""
        ...

    def over(self, sequence: int) -> bool:
        """Whether that round is over."""
        ...

    def wait(self, sequence: int) -> None:
        """Returns when that round is over."""
        ...

    def device_ns(self, sequence: int) -> tuple[int, int]:
        """How long a round that is over took, and how long the device had been idle before it, in nanoseconds."""
        ...


class Frames(Protocol):
    """Where plans come from and completions go, as tensors of one device."""

    @property
    def completions(self) -> Tensor:
        """int64 [2, nbytes / 8]: the two completion frames themselves."""
        ...

    @property
    def fetch(self) -> Fetch: ...

    @property
    def ends(self) -> Ends: ...

    def compile(self, rounds: Sequence[Round]) -> None:
        """Compiles what `rounds` launch, which may leave any state behind."""
        ...

    def capture(self, rounds: Round) -> Round:
        """What replays `rounds`, which has run before."""
        ...

    def run(self, rounds: Callable[[], object]) -> None:
        """Does `rounds` once where captured ones run, and returns when that has ended."""
        ...


class DeviceCatalog:
    """Every captured graph of a core on one device."""

    def __init__(
        self,
        manifest: Manifest,
        model: DeviceModel,
        drafter: DeviceDrafter | None,
        layouts: tuple[Layout, Layout],
        frames: Frames,
        device: torch.device,
    ) -> None:
        geometry, (plan_layout, completion_layout) = manifest.geometry, layouts
        self._manifest, self._frames = manifest, frames
        self.model, self._drafter = model, drafter
        self.state = DeviceState(geometry.concurrency, geometry.vocab_size, geometry.hidden_size, device)
        self.snapshots = DeviceSnapshots(model, drafter, self.state, geometry.snapshot_slots)
        self.counter = 0
        """The next round, as the host counts; the device counts for itself."""
        self._sequence = torch.zeros(1, dtype=torch.int64, device=device)
        self._taken = torch.zeros(plan_layout.nbytes // 8, dtype=torch.int64, device=device)
        self._plan = plan_tensors(self._taken, plan_layout)
        self._chunk_word = plan_layout.offset_of("chunk_slot") // 8
        self._out = DeviceCompletion(self.state, completion_layout, frames.completions)
        faults = self._faults()
        parts = Parts(model, drafter, self.state, self.snapshots, self._plan, self._out, faults)
        self._bodies = DevicePrograms(parts, self._sequence)
        self._fused = FusedRounds(parts, self._taken, plan_layout) if runs_triton(self._taken) else None
        self._slots = torch.arange(self.state.slots, device=device)[:, None].unbind()
        self._rounds: tuple[Round, ...] = ()

    def _faults(self) -> Tensor:
        """The fault bits of the model, which its drafter shares; of a model that cannot fail, nobody's."""
        if isinstance(self.model, Faulting):
            return self.model.faults
        return torch.zeros(self.state.slots + 1, dtype=torch.int32, device=self.state.device)

    @property
    def ends(self) -> Ends:
        """When its rounds begin and end."""
        return self._frames.ends

    def warm(self) -> None:
        """Runs every graph's round once on a plan for no round, then resets: compiles and allocates what that takes."""
        if self._rounds:
            raise ContractBreach("the catalog is frozen")
        self._frames.compile([self._round(index) for index in range(len(self._manifest.graphs))])
        for index in range(len(self._manifest.graphs)):
            self._frames.run(self._round(index))
        self.reset()
        self._frames.run(self._sequence.zero_)

    def capture(self) -> None:
        """Captures every graph of the manifest; afterwards the catalog is frozen."""
        if self._rounds:
            raise ContractBreach("the catalog is frozen")
        captured = {index: self._frames.capture(self._round(index)) for index in self.order}
        self._rounds = tuple(captured[index] for index in range(len(captured)))

    @property
    def order(self) -> list[int]:
        """Graphs in the order of capture, widest first: they share one pool, and small ones fit into what large ones
        left."""
        return sorted(range(len(self._manifest.graphs)), key=self.rows, reverse=True)

    def rows(self, index: int) -> int:
        """Rows of the largest forward of graph `index`; graphs are captured in descending order of them."""
        graph = self._manifest.graphs[index]
        return max(graph.batch_capacity * max(graph.verify_tokens, 1), graph.token_capacity)

    def _round(self, index: int) -> Round:
        graph = self._manifest.graphs[index]
        body = self._bodies.body(graph)
        fused = self._fused.body(index, graph) if self._fused is not None else None
        # Rounds of lanes alone need nothing of what follows their fields.
        stop = self._chunk_word if graph.kind in ("decode", "speculative") else len(self._taken)

        def rounds() -> None:
            self._frames.fetch(self._sequence, self._taken, stop)
            if fused is not None:
                fused(self._sequence)
            else:
                fault = self._judge(index)
                self._out.begin(fault)
                body(fault == 0)
            self._out.publish(self._sequence)

        return rounds

    def _judge(self, index: int) -> Tensor:
        """int64 [1]: the fault of a torn plan, or of one for another round or graph."""
        plan = self._plan
        foreign = (plan.head != self._sequence) | (plan.graph != index)
        unexpected = torch.where(foreign, int(Fault.UNEXPECTED_PLAN), int(Fault.NONE))
        return torch.where(plan.head != plan.tail, int(Fault.TORN_PLAN), unexpected)

    def reset(self) -> None:
        """Empties every slot and snapshot: a new scheduler starts here. The counter goes on. Not beside a round."""
        self._frames.run(self._empty)

    def _empty(self) -> None:
        self.state.clear()
        self.snapshots.clear()
        for slot in self._slots:
            self.model.reset(slot)
            if self._drafter is not None:
                self._drafter.reset(slot)

    def replay(self, index: int) -> int:
        """Launches graph `index` as the next round; its sequence. Raises `ContractBreach` for a foreign index."""
        if not 0 <= index < len(self._rounds):
            raise ContractBreach(f"no graph {index} was captured")
        sequence = self.counter
        self.counter += 1
        self._rounds[index]()
        return sequence
