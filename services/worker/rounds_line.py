"""The launch thread's own connection to the scheduler: `Replay` comes in by it, `Attached` and `RoundDone` go out.

Rounds then pass no other thread of the worker on their way. The polling thread makes the line, hands it over and from
then on only watches the connection; it has hellos, beats and faults on a connection of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog
import zmq

from services.worker.meters import Meters
from services.worker.replay import Finished, Launch
from shared.channel import Client, Refused
from shared.errors import Unroutable
from shared.messages.common import Message
from shared.messages.scheduler import Attached, RoundDone
from shared.messages.worker import TO_WORKER, Replay, ToWorker


class RoundsLine:
    """`took` is told of each round after the scheduler was."""

    def __init__(
        self, address: str, instance: int, refused: Refused, meters: Meters, took: Callable[[Finished], None]
    ) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._client: Client[ToWorker] = Client(self._context, address, TO_WORKER, refused)
        self._instance, self._meters, self._took = instance, meters, took
        self._scheduler = 0
        self._log = structlog.get_logger()

    @property
    def monitor(self) -> zmq.Socket[bytes]:
        """What the polling thread polls for changes of the connection."""
        return self._client.monitor

    @property
    def socket(self) -> zmq.Socket[bytes]:
        """What the launch thread polls for rounds."""
        return self._client.socket

    def events(self) -> tuple[bool, ...]:
        """Connection changes since the last call, for the polling thread."""
        return self._client.events()

    def take(self, sequence: int) -> Launch | None:
        """The next round that the scheduler wants, if one has come, which must be round `sequence`."""
        message = self._client.receive()
        if message is None:
            return None
        if isinstance(message, Replay) and (message.instance, message.sequence) == (self._scheduler, sequence):
            return Launch(message.graph, message.requests)
        self._refuse(message)
        return None

    def attached(self, scheduler: int, sequence: int, attempt: int) -> None:
        """The slots are empty for `scheduler`, whose rounds are taken from now on; the next is `sequence`.

        What came before was for slots as they were: the same scheduler may have given this worker up in between.
        """
        while (message := self._client.receive()) is not None:
            self._refuse(message)
        self._scheduler = scheduler
        self._send(Attached(instance=self._instance, scheduler=scheduler, sequence=sequence, attempt=attempt))

    def done(self, found: Finished) -> None:
        """A round is over."""
        self._send(
            RoundDone(
                instance=self._instance,
                sequence=found.sequence,
                graph=found.graph,
                device_ns=found.device_ns,
                idle_ns=found.idle_ns,
            )
        )
        self._took(found)

    def close(self) -> None:
        """Closes the connection. The launch thread has ended."""
        self._client.close()
        self._context.destroy(linger=200)

    def _refuse(self, message: ToWorker) -> None:
        self._meters.stale_messages += 1
        self._log.warning("worker.stale_message", kind=type(message).__name__)

    def _send(self, message: Message) -> None:
        try:
            self._client.send(message)
        except Unroutable:
            # The connection is gone. The polling thread sees that too, and says Hello anew once it is back.
            self._log.debug("worker.unsent", kind=type(message).__name__)
