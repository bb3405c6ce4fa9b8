"""Clients over raw sockets that leave when and how they like, or stay to the end: what they send, and what they got.

One event loop, no HTTP library: a library would tidy up what a vanished client never does.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from dataclasses import dataclass
from typing import Literal

import httpx
import orjson

PATH = b"/v1/chat/completions"
Leaving = Literal["body", "waiting", "prefill", "chunks", "last round", "never"]
LEAVINGS: tuple[Leaving, ...] = ("body", "waiting", "prefill", "chunks", "last round", "never")
SHORT = 12
"""Output tokens of those that leave in the last round: two rounds with full drafts."""
PREFIX = 700
"""Tokens of those that are to be left in the middle of: many chunks."""
LONG = 900
"""Of those that leave before: so many of them would keep a server busy for minutes."""


@dataclass(frozen=True, slots=True)
class Client:
    """What one client does. `after` is seconds, or a count of chunks; `reset` leaves with RST, else with FIN."""

    number: int
    leaving: Leaving
    after: float
    reset: bool
    stream: bool
    n: int

    @property
    def answer(self) -> str:
        """What it must get if it stays."""
        return f"client {self.number}"

    def body(self) -> bytes:
        """Its request."""
        text, tokens = f"tell me story {self.number}", LONG
        if self.leaving == "prefill":
            text, tokens = f"{text} {'x' * PREFIX}", LONG - PREFIX
        elif self.leaving == "last round":
            text, tokens = f"d1:7/7;say:{'abcdefgh' * 4}", SHORT
        elif self.leaving == "never":
            text = f"say:{self.answer}"
        return orjson.dumps(
            {
                "messages": [{"role": "user", "content": text}],
                "max_tokens": tokens,
                "temperature": 0,
                "stream": self.stream,
                "n": self.n,
            }
        )

    def request(self) -> bytes:
        """The bytes on the wire."""
        body = self.body()
        head = b"POST %s HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n" % PATH
        return head + b"content-length: %d\r\n\r\n" % len(body) + body


def crowd(count: int, seed: int, *, stream: bool, n: int) -> list[Client]:
    """Clients of every kind, in random order."""
    dice = random.Random(seed)
    clients = []
    for number in range(count):
        leaving = LEAVINGS[number % len(LEAVINGS)]
        after = float(dice.choice((0, 1, 5))) if leaving == "chunks" and stream else dice.uniform(0.0, 1.5)
        clients.append(Client(number, leaving, after, dice.random() < 0.5, stream, n))
    dice.shuffle(clients)
    return clients


class _Connection:
    """A socket of one client; `got` is all that came."""

    def __init__(self) -> None:
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.got = b""
        self._loop = asyncio.get_running_loop()

    async def connect(self, url: httpx.URL) -> None:
        await self._loop.sock_connect(self.socket, (url.host, url.port))

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self.socket, data)

    async def read_until(self, chunks: float) -> None:
        """Reads until so many data frames with text came, or the end."""
        while self.got.count(b'"content":"') <= chunks:
            data = await self._loop.sock_recv(self.socket, 1 << 16)
            if not data:
                return
            self.got += data

    def leave(self, reset: bool) -> None:
        if reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


async def visit(client: Client, url: httpx.URL) -> bytes:
    """Plays one client; returns what it read."""
    connection, request = _Connection(), client.request()
    await connection.connect(url)
    if client.leaving == "body":
        await connection.send(request[:-20])
        await asyncio.sleep(client.after)
    else:
        await connection.send(request)
    if client.leaving in ("waiting", "prefill") or (client.leaving in ("chunks", "last round") and not client.stream):
        await asyncio.sleep(client.after)
    elif client.leaving == "chunks":
        await connection.read_until(client.after)
    elif client.leaving == "last round":
        await connection.read_until(1)
    elif client.leaving == "never":
        await connection.read_until(float("inf"))
    connection.leave(client.reset and client.leaving != "never")
    return connection.got


async def visit_all(clients: list[Client], url: httpx.URL) -> list[bytes]:
    """All at once."""
    return await asyncio.gather(*(visit(client, url) for client in clients))


def texts(client: Client, got: bytes) -> list[str]:
    """The text of each choice in a complete answer of status 200. Raises `ValueError` for anything else."""
    head, _, body = got.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise ValueError(got[:500])
    found = [""] * client.n
    if not client.stream:
        for choice in orjson.loads(body)["choices"]:
            found[choice["index"]] = choice["message"]["content"]
        return found
    frames = [line for line in body.splitlines() if line.startswith(b"data: ")]
    if frames[-1] != b"data: [DONE]":
        raise ValueError(frames[-1])
    for frame in frames[:-1]:
        for choice in orjson.loads(frame[6:])["choices"]:
            found[choice["index"]] += choice["delta"].get("content") or ""
    return found
