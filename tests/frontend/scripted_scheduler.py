"""A scheduler with a script, over a real ZeroMQ server in a thread: the device's clipping rules, and nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TypeVar

import zmq

from shared.channel import RunDirectory, Server
from shared.errors import Unroutable
from shared.messages.common import DraftCounts, Message, TokenLogprobs, new_instance
from shared.messages.frontend import Delta, Failed, Finish, Status, Tokens, Welcome
from shared.messages.scheduler import (
    FROM_FRONTEND,
    Ack,
    Cancel,
    FromFrontend,
    FrontendHello,
    FrontendPing,
    Safe,
    StoppedAt,
    Submit,
)

EPOCH = 7
SOON_S = 20.0
"""Longest that a test waits for what takes milliseconds on a machine that has nothing else to do."""
Kind = TypeVar("Kind", bound=Message)
Found = TypeVar("Found")


@dataclass(frozen=True)
class Script:
    """What the model says to every request: `tokens` in rounds of `rounds` tokens, the last size repeated."""

    tokens: tuple[int, ...]
    rounds: tuple[int, ...] = (1,)
    pause_s: float = 0.0
    hang_after: int | None = None
    """Rounds after which nothing more comes."""
    failure: tuple[str, str] | None = None
    param: str | None = None
    """The field that the failure names."""
    cached_tokens: int = 0
    copied: tuple[int, ...] = (4,)
    """Sources of the accepted drafts of a round, the last one repeated."""
    scored: tuple[tuple[int, int], ...] = ((1, 1 << 30),)
    """Stretches of a scored prompt's positions, first and beyond the last, that are told before the first token."""


SLOW = Script(tuple(b"hello" * 60), (1,), pause_s=0.02)
STUCK = Script(tuple(b"hello"), (2,), hang_after=1)


@dataclass
class _Running:
    peer: bytes
    submit: Submit
    script: Script
    sent: int = 0
    rounds: int = 0
    due: float = 0.0
    counts: DraftCounts = field(default_factory=DraftCounts)


def _logprobs(token: int, top: int) -> TokenLogprobs:
    """Values that tests can predict."""
    return TokenLogprobs(logprob=-token / 1000, top=tuple((token + i, -(token + i) / 1000) for i in range(top)))


def _enough(look: Callable[[], list[Found]], count: int, what: str, seconds: float) -> list[Found]:
    """Looks until there are so many."""
    deadline = time.monotonic() + seconds
    while len(found := look()) < count:
        assert time.monotonic() < deadline, f"no {what} within {seconds} s"
        time.sleep(0.005)
    return found


class ScriptedScheduler:
    """Runs until `close`. `script` may be changed between requests; `received` holds what frontends sent.

    `by_choice` has another script for some choices of a request.
    """

    def __init__(self, run_dir: Path, digest: str, script: Script | None = None) -> None:
        self.instance = new_instance()
        self.digest = digest
        self.script = script or Script(tokens=tuple(b"hello"))
        self.by_choice: dict[int, Script] = {}
        self.ready = True
        self.silent = False
        self.received: list[FromFrontend] = []
        self._run_dir = RunDirectory(run_dir).ensure()
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._running: dict[str, _Running] = {}
        self._peers: set[bytes] = set()
        self._stopping = threading.Event()
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._up.wait(SOON_S)

    def close(self) -> None:
        """Ends the thread and its sockets: to the frontend the scheduler has died."""
        self._stopping.set()
        self._thread.join(SOON_S)
        assert not self._thread.is_alive()

    def call(self, action: Callable[[], None]) -> None:
        """Runs something on the scheduler's thread."""
        self._calls.put(action)

    def tell(self, ready: bool) -> None:
        """Changes readiness and says so at once."""
        self.ready = ready
        self.call(self._broadcast)

    def of(self, kind: type[Kind], request: str | None = None) -> list[Kind]:
        """Messages of a kind received so far, of one request or of all."""
        return [
            m
            for m in list(self.received)
            if isinstance(m, kind) and (request is None or getattr(m, "request", None) == request)
        ]

    def wait_for(
        self, kind: type[Kind], count: int = 1, *, request: str | None = None, timeout: float = SOON_S
    ) -> list[Kind]:
        """Waits until so many messages of a kind have come, of one request or of all."""
        return _enough(lambda: self.of(kind, request), count, kind.__name__, timeout)

    def safe(self, request: str, count: int) -> list[Safe]:
        """Waits until so many acknowledgements of a request have come, and returns all."""
        return _enough(
            lambda: [one for ack in self.of(Ack) for one in ack.safe if one.request == request], count, "Safe", SOON_S
        )

    @property
    def running(self) -> int:
        """Requests that the script has not finished and nobody cancelled or stopped."""
        return len(self._running)

    def fail(self, request: str, code: str) -> None:
        """Ends a running request with an error."""

        def end() -> None:
            running = self._running.pop(request)
            self._send(running.peer, Failed(instance=self.instance, request=request, code=code, message="as told"))

        self.call(end)

    def send_raw(self, message: Message) -> None:
        """Sends any message to all frontends."""

        def send() -> None:
            for peer in list(self._peers):
                self._send(peer, message)

        self.call(send)

    def _run(self) -> None:
        context = zmq.Context[zmq.Socket[bytes]]()
        self._server: Server[FromFrontend] = Server(context, self._run_dir.frontends, FROM_FRONTEND)
        self._up.set()
        told = time.monotonic()
        try:
            while not self._stopping.is_set():
                self._server.socket.poll(1 if self._running else 5)
                while (found := self._server.receive()) is not None:
                    self._take(*found)
                try:
                    self._calls.get_nowait()()
                except Empty:
                    pass
                for running in list(self._running.values()):
                    self._round(running)
                if time.monotonic() - told > 0.5:
                    told = time.monotonic()
                    self._broadcast()
        finally:
            self._server.close()
            context.term()

    def _send(self, peer: bytes, message: Message) -> None:
        try:
            self._server.send(peer, message)
        except Unroutable:
            self._peers.discard(peer)

    def _broadcast(self) -> None:
        if self.silent:
            return
        for peer in list(self._peers):
            self._send(peer, self._status())

    def _status(self) -> Status:
        return Status(
            instance=self.instance,
            ready=self.ready,
            reason="" if self.ready else "no worker",
            running=self.running,
            waiting=0,
            free_pages=1,
        )

    def _take(self, peer: bytes, message: FromFrontend) -> None:
        self.received.append(message)
        match message:
            case FrontendHello():
                self._peers.add(peer)
                self._send(peer, Welcome(instance=self.instance, manifest_digest=self.digest))
                self._send(peer, self._status())
            case FrontendPing():
                if not self.silent:
                    self._send(peer, self._status())
            case Submit():
                script = self.by_choice.get(message.choice, self.script)
                if script.failure is not None:
                    code, text = script.failure
                    self._send(
                        peer,
                        Failed(
                            instance=self.instance,
                            request=message.request,
                            code=code,
                            message=text,
                            param=script.param,
                        ),
                    )
                else:
                    self._running[message.request] = _Running(peer, message, script)
            case Cancel() | StoppedAt():
                self._running.pop(message.request, None)
            case Ack():
                pass

    def _round(self, running: _Running) -> None:
        script, submit = running.script, running.submit
        if not self.ready or time.monotonic() < running.due or running.rounds == script.hang_after:
            return
        running.due = time.monotonic() + script.pause_s
        if submit.scored and not running.sent:
            for start, end in script.scored:
                self._send(running.peer, self._scores(running, start, min(end, len(submit.prompt))))
        size = script.rounds[min(running.rounds, len(script.rounds) - 1)]
        tokens = script.tokens[running.sent : running.sent + size]
        finish: Finish = ""
        for index, token in enumerate(tokens):
            if token in submit.end_ids:
                tokens, finish = tokens[: index + 1], "stop"
                break
            if running.sent + index + 1 == submit.max_tokens:
                tokens, finish = tokens[: index + 1], "length"
                break
        if not tokens:
            del self._running[submit.request]  # the script is at its end without an ending: hangs for ever
            return
        self._send(running.peer, self._tokens(running, tokens, finish))
        running.sent += len(tokens)
        running.rounds += 1
        if finish:
            del self._running[submit.request]

    def _scores(self, running: _Running, start: int, end: int) -> Tokens:
        submit = running.submit
        scores = tuple(_logprobs(token, submit.sampling.logprobs) for token in submit.prompt[start:end])
        delta = Delta(request=submit.request, epoch=EPOCH, start=0, tokens=(), scores=scores, scored_from=start)
        return Tokens(instance=self.instance, sequence=running.rounds, deltas=(delta,))

    def _tokens(self, running: _Running, tokens: tuple[int, ...], finish: Finish) -> Tokens:
        """One round: all tokens but the last are accepted drafts, counted as copied from the prompt."""
        accepted, top = len(tokens) - 1, running.submit.sampling.logprobs
        old, copied = running.counts, running.script.copied
        running.counts = DraftCounts(
            rounds=old.rounds + 1,
            offered_prompt=old.offered_prompt + 7,
            accepted_prompt=old.accepted_prompt + accepted,
            accepted_by_depth=tuple(n + (depth < accepted) for depth, n in enumerate(old.accepted_by_depth)),
        )
        delta = Delta(
            request=running.submit.request,
            epoch=EPOCH,
            start=running.sent,
            tokens=tokens,
            sources=(*(copied[min(index, len(copied) - 1)] for index in range(accepted)), 0),
            logprobs=tuple(_logprobs(token, top) for token in tokens) if top >= 0 else (),
            finish=finish,
            cached_tokens=running.script.cached_tokens,
            counts=running.counts,
        )
        return Tokens(instance=self.instance, sequence=running.rounds, deltas=(delta,))
