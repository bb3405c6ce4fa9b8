"""What a worker receives, all of it from the scheduler."""

from __future__ import annotations

import msgspec

from shared.messages.common import Message


class Attach(Message, frozen=True, kw_only=True):
    """Answer to `WorkerHello`, also sent by a new scheduler: drain, reset the slots, answer `Attached`.

    `attempt` numbers a scheduler's handshakes: answers may come by another connection than their questions.
    """

    attempt: int = 0


class Replay(Message, frozen=True, kw_only=True):
    """Replay graph `graph` as round `sequence`; its plan lies in plan frame `sequence & 1`.

    `requests` are the ids of the requests in the round, for the worker's log alone; none unless the scheduler
    logs its rounds too.
    """

    sequence: int
    graph: int
    requests: tuple[str, ...] = ()


class Drain(Message, frozen=True, kw_only=True):
    """Finish queued rounds, then exit with code 0."""


ToWorker = Attach | Replay | Drain
TO_WORKER: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
