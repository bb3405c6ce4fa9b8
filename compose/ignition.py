"""The `ignition` command as it is installed: that of `recipes/cli.py`, and `debug-serve`, which needs the services."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from compose import options as opts
from compose.port_check import check_port
from recipes.cli import main
from shared import logs
from shared.log_config import LogConfig

__all__ = ["debug_serve", "main"]


@main.command("debug-serve")
@opts.CORE
@click.option(
    "--run-dir", type=click.Path(path_type=Path), help="Folder of the services' sockets; by default a new one."
)
@opts.options(opts.FRONTEND, opts.SCHEDULER, opts.WORKER)
@click.pass_context
def debug_serve(context: click.Context, /, core: Path, run_dir: Path | None, **values: Any) -> None:
    """Serve CORE from one process, with the graphs and options of `flare run`, for people who write recipes.

    A breakpoint() in a recipe's program stops there, and an exception of its model shows its traceback and ends the
    server. A round may take for ever, unless --round-timeout is given.
    """
    check_port(values["host"], values["port"])
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as in `flare worker`: before torch loads its thread pool
    logs.configure("ignition", opts.configure(LogConfig, values), form="console")
    try:
        from compose.debug_server import serve

        chosen = context.get_parameter_source("round_timeout")
        code = serve(core, run_dir, values, patient=chosen is ParameterSource.DEFAULT)
    finally:
        logs.flush()
    sys.exit(code)


opts.name_variables(debug_serve)


if __name__ == "__main__":
    main()
