"""The `flare` command: one service in the foreground, or all three under the local supervisor.

A service is imported only by the process that runs it, so that frontend and scheduler never load torch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from compose import options as opts
from compose.bench.replay import replay
from compose.bench.workload import workload
from shared import logs
from shared.errors import FlareError


def _guarded(service: str, run: Callable[[], int]) -> None:
    """Runs a service and exits with its code; an error of ours becomes one clear line."""
    logs.configure(service)
    try:
        code = run()
    except FlareError as error:
        raise click.ClickException(str(error)) from error
    sys.exit(code)


@click.group()
@click.version_option(package_name="flare-server", prog_name="flare")
def main() -> None:
    """Flare, an LLM inference server with lossless speculative decoding."""


@main.command()
@opts.CORE
@opts.RUN_DIR
@opts.options(opts.FRONTEND)
def frontend(**values: Any) -> None:
    """The HTTP frontend of CORE, in the foreground."""

    def start() -> int:
        from services.frontend.config import FrontendConfig
        from services.frontend.service import run as serve

        return serve(opts.configure(FrontendConfig, values))

    _guarded("frontend", start)


@main.command()
@opts.CORE
@opts.RUN_DIR
@opts.options(opts.SCHEDULER)
def scheduler(**values: Any) -> None:
    """The scheduler of CORE, in the foreground."""

    def start() -> int:
        from services.scheduler.config import SchedulerConfig
        from services.scheduler.service import run as serve

        return serve(opts.configure(SchedulerConfig, values))

    _guarded("scheduler", start)


@main.command()
@opts.CORE
@opts.RUN_DIR
@opts.options(opts.WORKER)
def worker(**values: Any) -> None:
    """The worker of CORE, in the foreground."""

    def start() -> int:
        # Before torch loads its thread pool: threads that spin for long at a barrier starve whoever shares their core,
        # and then each other (docs/log.md).
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
        from services.worker.config import WorkerConfig
        from services.worker.service import run as serve

        return serve(opts.configure(WorkerConfig, values))

    _guarded("worker", start)


@main.command()
@click.argument("core", required=False, type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--run-dir", type=click.Path(path_type=Path), help="Folder of the services' sockets; by default a new one."
)
@click.option("--context-length", type=int, help="Tokens of prompt and answer; a prepared CORE has its own.")
@opts.options(opts.FRONTEND, opts.SCHEDULER, opts.WORKER)
def run(core: Path | None, run_dir: Path | None, context_length: int | None, **values: Any) -> None:
    """Frontend, scheduler and worker of CORE under one local supervisor; without CORE, the embedded demo model."""

    def start() -> int:
        from compose.local_server import serve

        commands = {command.name: command for command in (frontend, scheduler, worker)}
        return serve(core, run_dir, context_length, values, commands)

    _guarded("supervisor", start)


@main.group()
def bench() -> None:
    """Benchmarks; each reports ratios measured in one run."""


bench.add_command(replay)
bench.add_command(workload)


if __name__ == "__main__":
    main()
