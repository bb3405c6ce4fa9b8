"""The one worker that a scheduler drives: its handshake, its shared memory, its signs of life. I/O lives here.

NONE -> (WorkerHello, regions opened, Attach sent) ATTACHING -> (Attached) READY -> (fault, silence, lost connection)
NONE. A worker that fell silent but beats again is attached anew. Messages of any other instance are ignored.
"""

from __future__ import annotations

from enum import Enum

import msgspec
import structlog

from services.scheduler.frame_writer import write
from services.scheduler.records import Records
from services.scheduler.rounds import Plan
from shared.channel import Server
from shared.errors import RegionError, Unroutable
from shared.frames import (
    FRAMES,
    CompletionFrame,
    PlanFrame,
    completion_frame,
    completion_layout,
    plan_frame,
    plan_layout,
)
from shared.logs import wants_debug
from shared.manifest import ABI, Manifest, largest_chunk
from shared.messages.scheduler import Attached, FromWorker, RoundDone, WorkerHello
from shared.messages.worker import Attach, Drain, Replay
from shared.regions import Region, RegionHandle, open_region

SUSPICION_S = 0.6
"""A connection ended: the worker is lost if it does not beat within three of its beats."""


class LinkState(Enum):
    """Where the handshake stands."""

    NONE = "none"
    ATTACHING = "attaching"
    READY = "ready"


class WorkerLink:
    """Times in seconds of the loop's clock."""

    def __init__(self, server: Server[FromWorker], manifest: Manifest, digest: str, instance: int) -> None:
        self.state = LinkState.NONE
        self.hello: WorkerHello | None = None
        self.sequence = 0
        """Number of the next round."""
        self._server = server
        self._manifest = manifest
        self._digest = digest
        self._instance = instance
        self._plan_layout = plan_layout(manifest.geometry, largest_chunk(manifest))
        self._completion_layout = completion_layout(manifest.geometry)
        self._peer = self._rounds_peer = b""
        self._attempt = 0
        self._heard = 0.0
        self._suspected: float | None = None
        self._regions: tuple[Region, Region] | None = None
        self._plans: list[PlanFrame] = []
        self._completions: list[CompletionFrame] = []
        self._tells = wants_debug()
        """Whether rounds name their requests, which costs a little and serves only the logs."""
        self._log = structlog.get_logger()

    def knows(self, peer: bytes, message: FromWorker) -> bool:
        """Whether a message is of the worker whose Hello was taken, attached or not.

        A worker may have a second connection for rounds: that from which it says Attached.
        """
        if self.hello is None or self.hello.instance != message.instance:
            return False
        if isinstance(message, RoundDone):
            return peer == self._rounds_peer
        return peer == self._peer or isinstance(message, Attached)

    def knows_instance(self, instance: int) -> bool:
        """Whether this is the worker whose Hello was taken last."""
        return self.hello is not None and self.hello.instance == instance

    def greet(self, peer: bytes, hello: WorkerHello, now: float) -> bool:
        """Opens a worker's regions and sends `Attach`. False, with the reason in the log, if it cannot serve here."""
        self.close()
        try:
            self._open(hello)
            self._attempt += 1
            self._server.send(peer, Attach(instance=self._instance, attempt=self._attempt))
        except (RegionError, msgspec.MsgspecError, Unroutable) as error:
            self._log.error("worker.refused", worker=hello.instance, reason=str(error))
            self.close()
            return False
        self._peer, self.hello, self.state = peer, hello, LinkState.ATTACHING
        self._heard, self._suspected = now, None
        return True

    def acceptable(self, hello: WorkerHello) -> str:
        """Why a worker is refused; empty if it is not."""
        if hello.abi != ABI:
            return f"its ABI {hello.abi} is not {ABI}"
        if hello.manifest_digest != self._digest:
            return "it serves another core: its manifest differs"
        if not 0 < hello.slots <= self._manifest.geometry.concurrency:
            return f"it offers {hello.slots} slots"
        if not 0 <= hello.snapshots <= self._manifest.geometry.snapshot_slots:
            return f"it offers {hello.snapshots} snapshot rows"
        if not 0 < hello.rounds_in_flight <= FRAMES:
            return f"it wants {hello.rounds_in_flight} rounds queued"
        if not 0 < hello.pages <= self._manifest.geometry.pages:
            return f"it offers {hello.pages} pages"
        return ""

    def attached(self, peer: bytes, message: Attached) -> bool:
        """The worker's answer to the last `Attach`; True once it serves this scheduler, at the connection `peer`.

        An answer to an earlier one says nothing: the worker will empty its slots again, and whatever is in them.
        """
        mine = message.scheduler == self._instance and message.attempt == self._attempt
        if self.state is not LinkState.ATTACHING or not mine or message.sequence < 0:
            return False
        self.state, self.sequence, self._rounds_peer = LinkState.READY, message.sequence, peer
        return True

    @property
    def rounds_in_flight(self) -> int:
        """Rounds that this worker takes before the first of them is done."""
        return FRAMES if self.hello is None else self.hello.rounds_in_flight

    @property
    def off_cpu(self) -> bool:
        """Whether the worker's rounds run elsewhere than on this machine's cores."""
        return self.hello is not None and self.hello.device != "cpu"

    def submit(self, plan: Plan) -> int:
        """Writes the frame of the next round, sends its `Replay`, returns its number. Raises `Unroutable`."""
        sequence = self.sequence
        write(self._plans[sequence % FRAMES], sequence, plan)
        requests = tuple(request.key.request for request in plan.requests) if self._tells else ()
        replay = Replay(instance=self._instance, sequence=sequence, graph=plan.graph.index, requests=requests)
        self._server.send(self._rounds_peer, replay)
        self.sequence += 1
        return sequence

    def drain(self) -> None:
        """Tells the worker that nothing more will come. Raises `Unroutable`."""
        self._server.send(self._peer, Drain(instance=self._instance))

    def read(self, sequence: int) -> Records:
        """The records of a round that is done. Raises `StaleRecord`."""
        if self._regions is None:
            raise RegionError("no worker is attached")
        layout, index = self._completion_layout, sequence % FRAMES
        # A region gives the same bytes the same place, so the views of the first time are those of this one.
        self._regions[1].refresh(index * layout.nbytes, layout.nbytes)
        return Records(self._completions[index], sequence)

    def heard(self, now: float) -> None:
        """The worker gave a sign of life."""
        self._heard, self._suspected = now, None

    def suspect(self, now: float) -> None:
        """Some worker connection ended; which one, only this worker's next beat can tell."""
        if self.state is not LinkState.NONE and self._suspected is None:
            self._suspected = now + SUSPICION_S

    def silent(self, now: float, timeout: float) -> str:
        """Why the worker must be given up; empty while it is well."""
        if self.state is LinkState.NONE:
            return ""
        if self._suspected is not None and now >= self._suspected:
            return "the worker's connection was lost"
        if now - self._heard > timeout:
            return f"the worker gave no sign of life for {timeout:g} s"
        return ""

    def detach(self) -> None:
        """Forgets the state but not the worker: if it beats again, it is greeted again."""
        self.state = LinkState.NONE
        self._close_regions()

    def again(self, now: float) -> bool:
        """A detached worker beats: the handshake once more."""
        return self.hello is not None and self.greet(self._peer, self.hello, now)

    def close(self) -> None:
        """Forgets the worker and unmaps its memory."""
        self.detach()
        self.hello, self._peer, self._rounds_peer = None, b"", b""

    def _open(self, hello: WorkerHello) -> None:
        handles = [
            msgspec.msgpack.decode(data, type=RegionHandle) for data in (hello.plan_region, hello.completion_region)
        ]
        for handle, layout in zip(handles, (self._plan_layout, self._completion_layout), strict=True):
            if handle.nbytes < FRAMES * layout.nbytes:
                raise RegionError(f"region {handle.name} of {handle.nbytes} bytes cannot hold two frames")
        if handles[0].kind != "posix":
            raise RegionError("plan frames must lie in host memory: only a worker writes the GPU's")
        plan = open_region(handles[0])
        try:
            self._regions = (plan, open_region(handles[1]))
        except RegionError:
            plan.close()
            raise
        buffer = plan.refresh(0, FRAMES * self._plan_layout.nbytes)
        self._plans = [plan_frame(self._plan_layout, buffer, index) for index in range(FRAMES)]
        buffer = self._regions[1].refresh(0, FRAMES * self._completion_layout.nbytes)
        self._completions = [completion_frame(self._completion_layout, buffer, index) for index in range(FRAMES)]

    def _close_regions(self) -> None:
        self._plans, self._completions = [], []
        if self._regions is not None:
            for region in self._regions:
                region.close()
            self._regions = None
