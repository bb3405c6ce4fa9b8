"""The graph catalog: prepare, warm, capture, freeze. After `freeze` the set of graphs cannot change.

Runs in the worker's launch thread. On the CPU a captured graph is the recorded callable of `programs.py`; the round
counter below stands where a CUDA graph has its counter in device memory.
"""

from __future__ import annotations

import numpy as np
import torch

from recipes.components.model import Drafter, Lane, Model, rows_of
from recipes.components.request_state import RequestState
from services.worker.completion import Completion
from services.worker.programs import Program, Programs
from services.worker.snapshots import Snapshots
from shared.errors import ContractBreach
from shared.frames import FRAMES, Fault, Layout, Meta, PlanFrame, completion_frame, plan_frame
from shared.manifest import CHUNK_KINDS, Manifest


class Catalog:
    """Every captured graph of a core over its plan and completion frames."""

    def __init__(
        self,
        manifest: Manifest,
        model: Model,
        drafter: Drafter | None,
        layouts: tuple[Layout, Layout],
        plans: memoryview,
        completions: memoryview,
    ) -> None:
        geometry = manifest.geometry
        self._manifest, self.model, self._drafter = manifest, model, drafter
        self.state = RequestState(geometry.concurrency, geometry.vocab_size, geometry.hidden_size)
        self.snapshots = Snapshots(model, drafter, self.state, geometry.snapshot_slots)
        self.counter = 0
        """The round counter: which frame is taken, and what its plan must state."""
        plan_layout, completion_layout = layouts
        size = plan_layout.nbytes
        self._host = [np.frombuffer(plans[i * size : (i + 1) * size], dtype=np.uint8) for i in range(FRAMES)]
        self._taken = np.zeros(size, dtype=np.uint8)
        self._plan: PlanFrame = plan_frame(plan_layout, self._taken.data, 0)
        self._out = [completion_frame(completion_layout, completions, index) for index in range(FRAMES)]
        self._programs: tuple[Program, ...] = ()
        self._bodies = Programs(model, drafter, self.state, self.snapshots)

    def capture(self) -> None:
        """Records every graph of the manifest; afterwards the catalog is frozen."""
        if self._programs:
            raise ContractBreach("the catalog is frozen")
        self._programs = tuple(self._bodies.record(graph) for graph in self._manifest.graphs)

    def warm(self) -> None:
        """Runs the model once at every row count that serving can ask for, then resets what that touched."""
        geometry = self._manifest.geometry
        widest = max((g.batch_capacity * max(g.verify_tokens, 1) for g in self._manifest.graphs), default=1)
        chunks = {tokens for kind in CHUNK_KINDS for _, tokens in self._manifest.capacities(kind)}
        pages = torch.arange(geometry.pages_per_request)
        counts = {min(count, geometry.context_length) for count in (*range(1, widest + 1), *chunks)}
        for count in sorted(counts):
            lane = Lane(0, 0, count, 0, pages)
            vectors = self.model.forward(rows_of(torch.zeros(count, dtype=torch.int64), (lane,)))
            self.model.logits(vectors[:widest])
            self.model.commit(lane, 0)
        self.reset()

    def reset(self) -> None:
        """Empties every slot and snapshot: a new scheduler starts here. The counter goes on."""
        self.state.clear()
        self.snapshots.clear()
        for slot in range(self.state.slots):
            self.model.reset(slot)
            if self._drafter is not None:
                self._drafter.reset(slot)

    @property
    def taken_plan(self) -> bytes:
        """The plan frame that the last replay took, as bytes."""
        return self._taken.tobytes()

    def emitted_by(self, sequence: int) -> int:
        """Tokens that one of the last two rounds emitted, over all its lanes."""
        return int(self._out[sequence % FRAMES].records[:, Meta.EMITTED].sum())

    def replay(self, index: int) -> int:
        """Runs graph `index` as the next round, returns its sequence. Raises `ContractBreach` for a foreign index."""
        if not 0 <= index < len(self._programs):
            raise ContractBreach(f"no graph {index} was captured")
        sequence = self.counter
        self.counter += 1
        np.copyto(self._taken, self._host[sequence % FRAMES])
        out = Completion(self._out[sequence % FRAMES], self.state, sequence)
        plan = self._plan
        if plan.head[0] != plan.tail[0]:
            out.fail(Fault.TORN_PLAN)
        elif plan.head[0] != sequence or plan.graph[0] != index:
            out.fail(Fault.UNEXPECTED_PLAN)
        else:
            self._programs[index](plan, out)
        out.publish()
        return sequence
