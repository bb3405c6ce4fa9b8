"""The plain local supervisor of `flare run`: three child processes, restarted when they die, drained when asked to end.

The frontend starts first, because it binds the port: an address that cannot be had is known before anything is loaded.
One thread; it sleeps until a signal, a child's end or its next deadline. Only processes that it started are signalled.
A child whose loop no longer turns, stopped or stuck, is killed and so restarted.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import structlog

from compose.hearing import Hearing
from compose.readiness import Address, is_ready, read_address
from compose.restarts import Restarts

FRONTEND = "frontend"
READY_POLL_S = 0.1
SLOWEST_POLL_S = 1.0
SETTLED_S = 1.0
"""Readiness that is seen sooner after a start may still be that of the process before."""
END_S = 15.0
"""How long scheduler and worker may take to end once the frontend has drained."""
HURRY_S = 1.0
"""How long anybody may take after a second signal, or when the supervisor gives up."""

log = structlog.get_logger()


@dataclass(slots=True)
class Service:
    """One child: its `flare` arguments and its process. `due` is when to start it next, `since` when it was started."""

    name: str
    arguments: tuple[str, ...]
    due: float = float("inf")
    since: float = 0.0
    process: subprocess.Popen[bytes] | None = None
    hearing: Hearing | None = None
    restarts: Restarts = field(default_factory=Restarts)


class Supervisor:
    """Runs services until a signal or until one of them is given up.

    `arguments` maps each service's name to its `flare` arguments, the frontend's among them; `announce` is called once,
    when the server is first ready. `check` is called when the frontend is given up, with the address that it had, and
    raises `ProcessError` if that can be had no more: `run` ends with it. A service whose loop stands still for
    `hang_timeout` seconds is killed; 0: never. `secrets` are the variables that one service alone may have in its
    environment.
    """

    def __init__(
        self,
        arguments: Mapping[str, Sequence[str]],
        notice: Path,
        drain_timeout: float,
        hang_timeout: float,
        announce: Callable[[Address], None],
        check: Callable[[Address | None], None],
        secrets: Mapping[str, Mapping[str, str]],
    ) -> None:
        self._services = {name: Service(name, tuple(given)) for name, given in arguments.items()}
        self._notice = notice
        self._drain_timeout = drain_timeout
        self._hang_timeout = hang_timeout
        self._announce = announce
        self._check = check
        self._secrets = secrets
        self._withheld = frozenset(name for variables in secrets.values() for name in variables)
        self._address: Address | None = None
        self._ready = False
        self._announced = False
        self._given_up = False
        self._signals = 0
        self._lifeline, self._held_end = os.pipe()
        self._wake, wakened = socket.socketpair()
        self._wake.setblocking(False)
        wakened.setblocking(False)
        self._wakened = wakened
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ)

    def run(self) -> int:
        """Blocks until all children have ended; 0 after a drain, 1 otherwise. Raises what `check` does."""
        signal.set_wakeup_fd(self._wakened.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # its byte in the wakeup descriptor is all we need
        self._services[FRONTEND].due = 0.0
        code = 1
        try:
            while not self._signals and not self._given_up:
                self._reap()
                self._start_due()
                self._listen()
                self._look()
                self._sleep(self._poll_interval())
            if self._signals:
                code = self._drain()
        finally:
            self._end(tuple(self._services), HURRY_S)
            os.close(self._held_end)
            os.close(self._lifeline)
            log.info("supervisor.stopped", code=code)
        return code

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1

    def _poll_interval(self) -> float:
        if not self._ready:
            return READY_POLL_S
        soonest = min(service.due for service in self._services.values()) - time.monotonic()
        return max(0.0, min(SLOWEST_POLL_S, soonest))

    def _sleep(self, seconds: float) -> None:
        """Sleeps until something happens, at most `seconds`."""
        if self._selector.select(seconds):
            try:
                while self._wake.recv(4096):
                    pass
            except BlockingIOError:
                pass

    def _start_due(self) -> None:
        now = time.monotonic()
        for service in self._services.values():
            if service.process is None and service.due <= now and not self._given_up:
                self._start(service, now)

    def _start(self, service: Service, now: float) -> None:
        """Starts a child in a process group of its own: a terminal's Ctrl-C must reach the supervisor alone."""
        service.hearing = hearing = Hearing(now)
        descriptors = (self._lifeline, hearing.writer)
        command = (sys.executable, "-m", "compose.child", str(os.getpid()), *map(str, descriptors))
        arguments = list(service.arguments)
        if service.name == FRONTEND and self._address is not None:
            arguments += ["--port", str(self._address.port)]  # the one that the system chose the first time
        service.process = subprocess.Popen(
            (*command, *arguments),
            stdin=subprocess.DEVNULL,
            pass_fds=descriptors,
            process_group=0,
            env=self._environment(service.name),
        )
        hearing.started()
        service.due, service.since = float("inf"), now
        log.info("supervisor.started", child=service.name, child_pid=service.process.pid)

    def _environment(self, name: str) -> dict[str, str]:
        """Ours, without what only another service may know."""
        common = {key: value for key, value in os.environ.items() if key not in self._withheld}
        return {**common, **self._secrets.get(name, {})}

    def _reap(self) -> None:
        """Collects children that ended, and schedules their restart or gives up."""
        for service in self._services.values():
            code = None if service.process is None else service.process.poll()
            if code is None:
                continue
            service.process = None
            if service.hearing is not None:
                service.hearing.close()
                service.hearing = None
            self._ready = False
            delay = service.restarts.died(code)
            if delay is None or (service.name == FRONTEND and self._address is None):
                if service.name == FRONTEND:
                    self._check(self._address)
                log.error("supervisor.gave_up", child=service.name, code=code)
                self._given_up = True
                return
            log.warning("supervisor.restarting", child=service.name, code=code, delay=delay)
            service.due = time.monotonic() + delay

    def _listen(self) -> None:
        """Kills a child whose loop stands still, as a stopped process takes no other signal; `_reap` does the rest."""
        now = time.monotonic()
        for service in self._services.values():
            if service.process is None or service.hearing is None:
                continue
            if service.hearing.silent(now, self._hang_timeout):
                log.error("supervisor.hung", child=service.name, limit=self._hang_timeout)
                service.process.kill()

    def _look(self) -> None:
        """Learns the address, lets the other services start behind it, and notices readiness."""
        frontend = self._services[FRONTEND].process
        if frontend is None:
            return
        if self._address is None or self._address.pid != frontend.pid:
            found = read_address(self._notice)
            if found is None or found.pid != frontend.pid:
                return
            if self._address is None:
                for service in self._services.values():
                    service.due = min(service.due, 0.0) if service.process is None else service.due
            self._address = found
            return
        settled = time.monotonic() - SETTLED_S
        if any(service.process is None or service.since > settled for service in self._services.values()):
            return
        if not self._ready and is_ready(self._address):
            self._note_ready(self._address)

    def _note_ready(self, address: Address) -> None:
        self._ready = True
        for service in self._services.values():
            service.restarts.ready()
        log.info("supervisor.ready", url=address.url)
        if not self._announced:
            self._announced = True
            self._announce(address)

    def _drain(self) -> int:
        """Frontend first, so that running streams finish; then the others."""
        log.info("supervisor.draining")
        others = tuple(name for name in self._services if name != FRONTEND)
        clean = self._end((FRONTEND,), self._drain_timeout + END_S) and self._end(others, END_S)
        return 0 if clean else 1

    def _end(self, names: tuple[str, ...], limit: float) -> bool:
        """SIGTERM, and SIGKILL after `limit` seconds, soon after a second signal to us. True if nobody was killed."""
        deadline, hurried = time.monotonic() + limit, False
        self._tell(self._living(names), signal.SIGTERM)
        while (living := self._living(names)) and time.monotonic() < deadline:
            if self._signals > 1 and not hurried:
                deadline, hurried = min(deadline, time.monotonic() + HURRY_S), True
                self._tell(living, signal.SIGTERM)
            self._sleep(min(READY_POLL_S, max(0.0, deadline - time.monotonic())))
        self._tell(living, signal.SIGKILL)
        for name, process in living:
            log.error("supervisor.killed", child=name)
            process.wait()
        return not living

    def _living(self, names: tuple[str, ...]) -> list[tuple[str, subprocess.Popen[bytes]]]:
        found = ((name, self._services[name].process) for name in names)
        return [(name, process) for name, process in found if process is not None and process.poll() is None]

    def _tell(self, living: list[tuple[str, subprocess.Popen[bytes]]], number: signal.Signals) -> None:
        for _, process in living:
            process.send_signal(number)
