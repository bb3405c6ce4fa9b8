"""The frontend process: binds its port, loads the core, talks to the scheduler, serves HTTP, drains and ends.

It puts the pieces of this package together and owns their life. `run` blocks; its value is the exit code.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import orjson
import structlog
import uvloop
import zmq

from services.frontend.api.app import make_app
from services.frontend.config import FrontendConfig
from services.frontend.core import load_core
from services.frontend.exposition import expose
from services.frontend.link import SchedulerLink
from services.frontend.listener import bind, forward_logs, make_listener
from services.frontend.state import FrontendState
from shared.errors import FlareError
from shared.log_traces import message_of
from shared.metrics_listener import served
from shared.pulse import BEAT_S, PULSE, SWITCH_INTERVAL_S

THREADS = 2
DRAIN_POLL_S = 0.05
LAST_FRAMES_S = 1.0
"""After the drain limit, how long the error frames may take to go out."""

log = structlog.get_logger()


class Frontend:
    """One frontend on one event loop. `stop` begins to drain; a second call ends the draining."""

    def __init__(self, config: FrontendConfig) -> None:
        self.config = config
        self._loop = asyncio.get_running_loop()
        self._stops = 0
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._fault: BaseException | None = None

    def stop(self) -> None:
        """Call on the event loop."""
        self._stops += 1
        (self._stopping if self._stops == 1 else self._hurry).set()

    def stop_from_elsewhere(self) -> None:
        """The same, from any thread."""
        self._loop.call_soon_threadsafe(self.stop)

    async def serve(self, bound: socket.socket, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        """Serves until stopped. Raises what ended it otherwise."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._note_fault)
        link = SchedulerLink(context, self.config.sockets.frontends, self.config.scheduler_timeout)
        state = FrontendState(link, self.config.ready_timeout, self.config.keep_alive, self.config.log_content)
        exposition = expose(state)
        threads = ThreadPoolExecutor(THREADS, thread_name_prefix="encode")
        listener = make_listener(make_app(state, exposition, threads, self.config))
        shown = ExitStack()
        try:
            config = self.config
            shown.enter_context(
                served(exposition, "frontend", config.metrics_host, config.metrics_port, config.run_dir)
            )
            async with asyncio.TaskGroup() as tasks:
                ticking = (tasks.create_task(link.tick()), tasks.create_task(_beat()))
                tasks.create_task(listener.serve([bound]))
                loading = tasks.create_task(self._load(state, threads))
                await self._stopping.wait()
                loading.cancel()
                await self._drain(state)
                listener.should_exit = True
                for task in ticking:
                    task.cancel()
            if self._fault is not None:
                raise self._fault
        finally:
            shown.close()
            threads.shutdown(wait=False, cancel_futures=True)
            link.close()

    async def _load(self, state: FrontendState, threads: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        core = await loop.run_in_executor(threads, load_core, self.config.core, self.config.served_model_name)
        state.core = core
        log.info("frontend.loaded", model=core.model, vocabulary=len(core.vocabulary), seconds=loop.time() - started)

    async def _drain(self, state: FrontendState) -> None:
        """Takes no new work and lets requests finish, up to the limit; then each gets an error."""
        loop = asyncio.get_running_loop()
        state.draining = True
        log.info("frontend.draining", open=state.open_requests)
        deadline = loop.time() + self.config.drain_timeout
        while state.open_requests and loop.time() < deadline and not self._hurry.is_set():
            await asyncio.sleep(DRAIN_POLL_S)
        if state.open_requests:
            log.warning("frontend.drain_limit", open=state.open_requests)
            state.link.fail_all("the server is shutting down")
        deadline = loop.time() + LAST_FRAMES_S
        while state.open_requests and loop.time() < deadline:
            await asyncio.sleep(DRAIN_POLL_S)

    def _note_fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What no coroutine saw. A client's transport may break; a callback of ours may not, and ends the process."""
        error = context.get("exception")
        log.error("frontend.fault", message=str(context.get("message", ""))[:500], exc_info=error)
        ours = not context.keys() & {"transport", "protocol", "socket"}
        if ours and error is not None and self._fault is None:
            self._fault = error
            self.stop()
            self.stop()


async def _beat() -> None:
    """Tells the supervisor that the event loop turns; for ever, as a task of its own."""
    while True:
        PULSE.beat(asyncio.get_running_loop().time())
        await asyncio.sleep(BEAT_S / 2)


def _announce(config: FrontendConfig, bound: socket.socket) -> None:
    """Logs the address and writes it where the supervisor looks, whole or not at all."""
    host, port = bound.getsockname()[:2]
    log.info("frontend.listening", host=host, port=port)
    making = config.notice.with_suffix(f".{os.getpid()}")
    making.write_bytes(orjson.dumps({"host": host, "port": port, "pid": os.getpid()}))
    making.replace(config.notice)


def _withdraw(config: FrontendConfig) -> None:
    """Removes the address file, unless another frontend has written it since."""
    try:
        if orjson.loads(config.notice.read_bytes())["pid"] == os.getpid():
            config.notice.unlink()
    except (OSError, ValueError, KeyError, TypeError):
        return


async def _main(config: FrontendConfig, started: Callable[[Frontend], None] | None) -> None:
    loop = asyncio.get_running_loop()
    frontend = Frontend(config)
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, frontend.stop)
    context = zmq.Context[zmq.Socket[bytes]]()
    bound = bind(config.host, config.port)
    try:
        _announce(config, bound)
        if started is not None:
            started(frontend)
        await frontend.serve(bound, context)
    finally:
        bound.close()
        _withdraw(config)
        context.term()


def _causes(error: BaseException) -> list[BaseException]:
    """The single errors in a group of them."""
    if isinstance(error, BaseExceptionGroup):
        return [cause for child in error.exceptions for cause in _causes(child)]
    return [error]


def run(config: FrontendConfig, started: Callable[[Frontend], None] | None = None) -> int:
    """Serves until SIGTERM or SIGINT; 0 after a drain, 1 after a fault, which is logged.

    The caller sets up the log (`shared.logs.configure`).
    `started` is called on the event loop once the port is bound: outside the main thread there are no signals, and
    its `Frontend.stop` is how to end the service.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    forward_logs()
    try:
        config.sockets.ensure()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_main(config, started))
    except Exception as error:  # top of the process: whatever it is, it is logged and becomes the exit code
        for cause in _causes(error):
            expected = isinstance(cause, FlareError)
            log.error("frontend.failed", reason=message_of(cause, withhold=True), exc_info=None if expected else cause)
        return 1
    log.info("frontend.ended")
    return 0
