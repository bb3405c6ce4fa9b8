"""Typed ZeroMQ sockets over the message unions: a `Server` (ROUTER) and a `Client` (DEALER).

Queues are bounded, an unroutable message raises, a frame that does not decode is counted and dropped, and a monitor
tells when a peer's connection ends. Socket files lie in one folder of mode 0700. Nothing here blocks for ever.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from shared.errors import ProcessError, Unroutable
from shared.messages.common import Message

Incoming = TypeVar("Incoming")

QUEUE_MESSAGES = 4096
MAXIMUM_BYTES = 64 << 20
HEARTBEAT_MS = 1_000
HEARTBEAT_TIMEOUT_MS = 15_000
_UNIX_PATH = 107
_POLLIN = int(zmq.POLLIN)
"""A plain number: operators of flags make objects, which is felt in a loop that turns without sleep."""
_encoder = msgspec.msgpack.Encoder()


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The folder of one server's sockets; every address follows from it."""

    path: Path

    def ensure(self) -> RunDirectory:
        """Makes the folder with mode 0700. Raises `ProcessError` if it cannot serve."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if len(os.fsencode(self.path / "scheduler-frontends.sock")) > _UNIX_PATH:
            raise ProcessError(f"{self.path} is too long a path for a socket: choose a shorter --run-dir")
        if self.path.stat().st_mode & 0o077:
            raise ProcessError(f"{self.path} must have mode 0700: others could reach the sockets")
        return self

    def claim(self) -> int:
        """A descriptor that makes this process its one scheduler, until it is closed or the process ends.

        A socket file does not tell whether its owner lives: the library replaces it and takes the peers over, in
        silence. Raises `ProcessError` when another scheduler has the folder.
        """
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise ProcessError(f"another scheduler runs in {self.path}: choose another --run-dir") from error
        return descriptor

    @property
    def frontends(self) -> str:
        """Where the scheduler listens for frontends."""
        return f"ipc://{self.path}/scheduler-frontends.sock"

    @property
    def workers(self) -> str:
        """Where the scheduler listens for the worker."""
        return f"ipc://{self.path}/scheduler-workers.sock"


def _configure(socket: zmq.Socket[bytes]) -> None:
    socket.setsockopt(zmq.LINGER, 200)
    socket.setsockopt(zmq.SNDHWM, QUEUE_MESSAGES)
    socket.setsockopt(zmq.RCVHWM, QUEUE_MESSAGES)
    socket.setsockopt(zmq.MAXMSGSIZE, MAXIMUM_BYTES)
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
    socket.setsockopt(zmq.IMMEDIATE, 1)


@dataclass(slots=True)
class Refused:
    """Frames that were dropped because they did not decode: never a crash, always counted."""

    count: int = 0
    last: str = ""


def _decode(decoder: msgspec.msgpack.Decoder[Incoming], data: bytes, refused: Refused) -> Incoming | None:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        refused.count += 1
        refused.last = str(error)[:200]
        return None


def waits(socket: zmq.Socket[bytes]) -> bool:
    """Whether a message can be taken from it. To learn that from a refused `recv` takes twice the time: it raises."""
    return bool(int(socket.getsockopt(zmq.EVENTS)) & _POLLIN)


@dataclass(slots=True)
class Server(Generic[Incoming]):
    """The bound end. Peers are told apart by their routing id, which the library assigns."""

    context: zmq.Context[zmq.Socket[bytes]]
    address: str
    decoder: msgspec.msgpack.Decoder[Incoming]
    refused: Refused = field(default_factory=Refused)
    socket: zmq.Socket[bytes] = field(init=False)
    monitor: zmq.Socket[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.socket = self.context.socket(zmq.ROUTER)
        _configure(self.socket)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.monitor = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        try:
            self.socket.bind(self.address)
        except zmq.ZMQError as error:
            raise ProcessError(f"cannot listen at {self.address}: {error}") from error

    def receive(self) -> tuple[bytes, Incoming] | None:
        """One message and its sender, or None when nothing (valid) waits."""
        while waits(self.socket):
            parts = self.socket.recv_multipart(zmq.NOBLOCK)
            if len(parts) != 2:
                self.refused.count += 1
                self.refused.last = f"{len(parts)} parts"
                continue
            message = _decode(self.decoder, parts[1], self.refused)
            if message is not None:
                return parts[0], message
        return None

    def send(self, peer: bytes, message: Message) -> None:
        """Sends or raises `Unroutable`: the peer is gone, or does not read and its queue is full."""
        try:
            self.socket.send_multipart([peer, _encoder.encode(message)], zmq.NOBLOCK)
        except zmq.Again as error:
            raise Unroutable(f"{type(message).__name__}: the peer does not read") from error
        except zmq.ZMQError as error:
            raise Unroutable(f"{type(message).__name__}: {error}") from error

    def losses(self) -> int:
        """How many connections ended since the last call."""
        return _count_events(self.monitor)

    def close(self) -> None:
        """Closes the socket and its monitor."""
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close()


def _count_events(monitor: zmq.Socket[bytes]) -> int:
    count = 0
    while waits(monitor):
        parse_monitor_message(monitor.recv_multipart(zmq.NOBLOCK))
        count += 1
    return count


@dataclass(slots=True)
class Client(Generic[Incoming]):
    """The connecting end; it reconnects by itself, and says so through `events`."""

    context: zmq.Context[zmq.Socket[bytes]]
    address: str
    decoder: msgspec.msgpack.Decoder[Incoming]
    refused: Refused = field(default_factory=Refused)
    socket: zmq.Socket[bytes] = field(init=False)
    monitor: zmq.Socket[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.socket = self.context.socket(zmq.DEALER)
        _configure(self.socket)
        self.socket.setsockopt(zmq.RECONNECT_IVL, 20)
        self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        self.monitor = self.socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self.socket.connect(self.address)

    def receive(self) -> Incoming | None:
        """One message, or None when nothing (valid) waits."""
        while waits(self.socket):
            try:
                data = self.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return None  # the connection ended in between, and took the message with it
            message = _decode(self.decoder, data, self.refused)
            if message is not None:
                return message
        return None

    def send(self, message: Message) -> None:
        """Sends or raises `Unroutable` when not connected or the queue is full."""
        try:
            self.socket.send(_encoder.encode(message), zmq.NOBLOCK)
        except zmq.Again as error:
            raise Unroutable(f"{type(message).__name__}: not connected to {self.address}") from error

    def events(self) -> tuple[bool, ...]:
        """Connection changes since the last call, in order: True for connected, False for lost."""
        found: list[bool] = []
        while waits(self.monitor):
            event = parse_monitor_message(self.monitor.recv_multipart(zmq.NOBLOCK))
            found.append(event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED)
        return tuple(found)

    def close(self) -> None:
        """Closes the socket and its monitor."""
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close()
