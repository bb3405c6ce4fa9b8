"""What the scheduler receives, from frontends and from the worker."""

from __future__ import annotations

import msgspec

from shared.messages.common import Message, Sampling


class FrontendHello(Message, frozen=True, kw_only=True):
    """First message of a frontend on a connection; answered by `Welcome`."""


class Submit(Message, frozen=True, kw_only=True):
    """A new request. `request` is unique within the frontend instance and is the id that logs show.

    `end_ids` end it on the device; `ignore_end` clears them. `max_tokens` is the output budget, at least one.
    `choice` numbers the choices of one HTTP request, whose id is the part of `request` before a slash. With
    `scored` the prompt's tokens come with log probabilities too, as many alternatives each as `sampling.logprobs` says.
    """

    request: str
    prompt: tuple[int, ...]
    sampling: Sampling
    max_tokens: int
    end_ids: tuple[int, ...]
    choice: int = 0
    scored: bool = False


class Safe(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens below `upto` (a count of generated tokens) can no longer be cut off by a stop string."""

    request: str
    epoch: int
    upto: int


class Ack(Message, frozen=True, kw_only=True):
    """What stands of the requests that one `Tokens` told of."""

    safe: tuple[Safe, ...]


class StoppedAt(Message, frozen=True, kw_only=True):
    """A stop string ended the request: its first `visible` generated tokens stand, the rest never happened."""

    request: str
    epoch: int
    visible: int


class Cancel(Message, frozen=True, kw_only=True):
    """The client is gone, or the frontend no longer wants the request; unknown ids are ignored."""

    request: str


class FrontendPing(Message, frozen=True, kw_only=True):
    """Answered by `Status`."""


class WorkerHello(Message, frozen=True, kw_only=True):
    """First message of a worker on a connection; answered by `Attach`.

    `plan_region` and `completion_region` name what `shared.regions.open_region` opens; `device_uuid` is the GPU's or
    "cpu"; `manifest_digest` is SHA-256 of manifest.json; `slots` and `pages` are what the worker really holds;
    `rounds_in_flight` are the rounds that may be queued in it: two, or one if its rounds wait for a row server.
    """

    abi: int
    device: str
    device_uuid: str
    manifest_digest: str
    plan_region: bytes
    completion_region: bytes
    slots: int
    pages: int
    snapshots: int
    process: int
    rounds_in_flight: int = 2


class Attached(Message, frozen=True, kw_only=True):
    """The worker drained, reset its slots and now serves `scheduler`; the next round has number `sequence`.

    `attempt` is that of the `Attach` which it answers.
    """

    scheduler: int
    sequence: int
    attempt: int = 0


class RoundDone(Message, frozen=True, kw_only=True):
    """Round `sequence` is complete and its completion frame readable. Times in nanoseconds of the worker's clock.

    `device_ns` is how long the graph ran, `idle_ns` how long the device waited for it since the previous round.
    """

    sequence: int
    graph: int
    device_ns: int
    idle_ns: int


class WorkerFault(Message, frozen=True, kw_only=True):
    """The worker cannot go on and will exit; `code` and `message` as in `shared.errors`."""

    code: str
    message: str


class WorkerBeat(Message, frozen=True, kw_only=True):
    """Heartbeat, several a second, from a thread of its own; `sequence` is the next round to finish.

    A worker that is `draining` was told to end: it takes no new request and goes when it is sent `Drain`.
    """

    sequence: int
    draining: bool = False


FromFrontend = FrontendHello | Submit | Ack | StoppedAt | Cancel | FrontendPing
FromWorker = WorkerHello | Attached | RoundDone | WorkerFault | WorkerBeat

FROM_FRONTEND: msgspec.msgpack.Decoder[FromFrontend] = msgspec.msgpack.Decoder(FromFrontend)
FROM_WORKER: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)
