"""What `ignition debug-serve` runs: frontend, scheduler and worker of a core in one process, for who writes a recipe.

The services are those of `flare run`, over the same graphs; only the processes between them are gone. The frontend has
the main thread, and with it the signals; scheduler and worker have a thread each. Nothing is restarted: what ends one
service ends all, after its traceback. A debugger may hold a program for as long as it likes.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import structlog

from compose import greeting
from compose.local_server import Configurations, check_limits, configurations
from compose.readiness import Address, is_ready, read_address
from compose.run_directory import LockedRunDirectory
from services.frontend.service import Frontend
from services.frontend.service import run as run_frontend
from services.scheduler.service import run as run_scheduler
from services.worker.service import run as run_worker
from shared import logs, manifest, regions
from shared.errors import FlareError

END_S = 5.0
"""How long scheduler and worker may take to end behind the frontend, whose drain is over by then."""
READY_POLL_S = 0.1

log = structlog.get_logger()


class _Service(threading.Thread):
    """One service: `serve` returns its exit code; `ended` is called when it has, or has failed."""

    def __init__(self, name: str, serve: Callable[[Callable[[Any], None]], int], ended: Callable[[], None]) -> None:
        super().__init__(name=name, daemon=True)
        self._serve = serve
        self._ended = ended
        self._running: Any = None
        self._leaving = False
        self.code: int | None = None

    def run(self) -> None:
        # The top of what is a process elsewhere: whatever ends it is shown, and ends the others too.
        try:
            self.code = self._serve(self._take)
        except BaseException as error:
            expected = isinstance(error, FlareError)
            told = {"reason": str(error)} if expected else {"exc_info": error}
            log.error("debug_serve.failed", part=self.name, **told)
            self.code = 1
        finally:
            self._ended()

    def _take(self, running: Any) -> None:
        self._running = running
        if self._leaving:
            running.stop()

    def stop(self) -> None:
        """Asks it to end and waits for a while."""
        self._leaving = True
        if self._running is not None:
            self._running.stop()
        self.join(END_S)


class DebugServer:
    """The three services of `configs` in this process."""

    def __init__(self, configs: Configurations, announce: Callable[[Address], None]) -> None:
        self._configs = configs
        self._announce = announce
        self._frontend: Frontend | None = None
        self._ending = threading.Event()
        self._services = (
            _Service("scheduler", lambda started: run_scheduler(configs.scheduler, started), self._on_end),
            _Service("worker", lambda started: run_worker(configs.worker, started), self._on_end),
        )

    def run(self) -> int:
        """Blocks until a signal, or until a service ends by itself; 0 if all ended well. In the main thread."""
        for service in self._services:
            service.start()
        try:
            codes = [run_frontend(self._configs.frontend, self._on_frontend)]
        finally:
            self._ending.set()
            for service in self._services:
                service.stop()
        codes += [1 if service.code is None else service.code for service in self._services]
        return max(codes)

    def _on_frontend(self, frontend: Frontend) -> None:
        self._frontend = frontend
        threading.Thread(target=self._watch, name="readiness", daemon=True).start()
        if self._ending.is_set():
            frontend.stop_from_elsewhere()

    def _on_end(self) -> None:
        """A service is over. If nobody asked it to be, the frontend drains, and then all ends."""
        if not self._ending.is_set():
            self._ending.set()
            if self._frontend is not None:
                self._frontend.stop_from_elsewhere()

    def _watch(self) -> None:
        """Says once that the server is ready."""
        address = read_address(self._configs.frontend.notice)
        while address is not None and not self._ending.wait(READY_POLL_S):
            if is_ready(address):
                self._announce(address)
                return


def serve(core: Path, chosen: Path | None, values: Mapping[str, Any], patient: bool) -> int:
    """Serves until told to end; returns the exit code. With `patient` a round may take for ever."""
    regions.sweep()
    found = manifest.read(core)
    check_limits(found, None, values["concurrency"])
    held = LockedRunDirectory(chosen)
    try:
        limit = {"round_timeout": math.inf} if patient else {}
        configs = configurations(core.absolute(), found, held.path, {**values, **limit})
        model = configs.frontend.served_model_name or found.model_name

        def announce(address: Address) -> None:
            which, keys = greeting.choice(address, chosen), bool(configs.frontend.api_keys)
            told = greeting.greeting(address, model, flare=greeting.command(), which=which, keys=keys, logs=False)
            click.echo(told, err=True)

        code = DebugServer(configs, announce).run()
    finally:
        held.release()
        regions.sweep()
    if any(thread.name == "launch" and thread.is_alive() for thread in threading.enumerate()):
        # A program that a debugger holds waits on standard input, which the interpreter must not tear down under it.
        logs.flush()
        os._exit(code)
    return code
