"""Entry of the scheduler process: opens the core, listens, serves until it is told to stop."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

import structlog

from services.scheduler.config import SchedulerConfig
from services.scheduler.exposition import expose
from services.scheduler.loop import Loop
from services.scheduler.opening import open_core
from services.scheduler.tallies import Tallies
from shared import regions
from shared.channel import RunDirectory
from shared.messages.common import new_instance
from shared.metrics_listener import served
from shared.pulse import SWITCH_INTERVAL_S


def run(config: SchedulerConfig, started: Callable[[Loop], None] | None = None) -> int:
    """Serves until SIGTERM or SIGINT and the drain after it; returns the exit code. Raises `ProcessError` at start.

    `started` is given the loop before it turns: outside the main thread there are no signals, and its `stop` is how to
    end it.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    regions.sweep()
    claim = RunDirectory(config.run_dir).ensure().claim()
    try:
        return _serve(config, started)
    finally:
        os.close(claim)


def _serve(config: SchedulerConfig, started: Callable[[Loop], None] | None) -> int:
    instance = new_instance()
    tallies = Tallies()
    opened = open_core(config, instance)
    loop = Loop(config, opened, instance, tallies)
    if started is not None:
        started(loop)
    if threading.current_thread() is threading.main_thread():

        def on_signal(number: int, frame: FrameType | None) -> None:
            loop.stop()

        signal.signal(signal.SIGTERM, on_signal)
        signal.signal(signal.SIGINT, on_signal)
    structlog.get_logger().info(
        "scheduler.core", model=opened.manifest.model_name, slots=opened.slots, draft_cap=opened.graphs.draft_cap
    )
    # What is alive now lives as long as the process: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    shown = expose(tallies, loop.gauges, loop.unready, config.served_model_name or opened.manifest.model_name)
    with served(shown, "scheduler", config.metrics_host, config.metrics_port, config.run_dir):
        return loop.run()
