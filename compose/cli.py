"""The `flare` command: one service in the foreground, or all three under the local supervisor.

A service is imported only by the process that runs it, so that frontend and scheduler never load torch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from compose import log_place
from compose import options as opts
from compose.bench.replay import replay
from compose.bench.workload import workload
from compose.chat import chat
from compose.logs import logs as show_logs
from compose.port_check import check_port
from compose.status import status
from shared import logs
from shared.errors import FlareError
from shared.log_config import LogConfig
from shared.log_traces import OPERATIONAL


def _guarded(service: str, values: Mapping[str, Any], run: Callable[[], int]) -> None:
    """Runs a service with its log and exits with its code; an error of ours becomes one clear line."""
    try:
        # Exceptions of libraries may quote what they fell over. The frontend has text, the others have token ids, and
        # of them an operator must hear what a device says.
        logs.configure(
            service,
            opts.configure(LogConfig, values),
            withhold=not values.get("log_content", False),
            told=() if service == "frontend" else OPERATIONAL,
        )
        code = run()
    except FlareError as error:
        logs.flush()  # before anything else is said
        click.ClickException(str(error)).show()
        sys.exit(error.exit_code)
    finally:
        logs.flush()
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

    _guarded("frontend", values, start)


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

    _guarded("scheduler", values, start)


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

    _guarded("worker", values, start)


@main.command()
@click.argument("core", required=False, type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--run-dir", type=click.Path(path_type=Path), help="Folder of the services' sockets; by default a new one."
)
@click.option("--context-length", type=int, help="Tokens of prompt and answer; a prepared CORE has its own.")
@opts.HANG
@opts.options(opts.FRONTEND, opts.SCHEDULER, opts.WORKER)
def run(core: Path | None, run_dir: Path | None, context_length: int | None, **values: Any) -> None:
    """Frontend, scheduler and worker of CORE under one local supervisor; without CORE, the embedded demo model."""
    try:
        check_port(values["host"], values["port"])  # before there are logs, or a core is prepared
    except FlareError as error:
        raise click.ClickException(str(error)) from error
    values["log_dir"] = log_place.choose(values["log_dir"], values["port"])

    def start() -> int:
        from compose.local_server import serve

        commands = {command.name: command for command in (frontend, scheduler, worker)}
        return serve(core, run_dir, context_length, values, commands)

    _guarded("supervisor", values, start)


opts.name_variables(frontend, scheduler, worker, run)


@main.group()
def bench() -> None:
    """Benchmarks; each reports ratios measured in one run."""


bench.add_command(replay)
bench.add_command(workload)
main.add_command(show_logs)
main.add_command(status)
main.add_command(chat)


if __name__ == "__main__":
    main()
