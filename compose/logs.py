"""`flare logs`: reads the log files of a server and follows one request through all of its services."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path

import click
from click.core import ParameterSource

from compose import server_choice
from compose.local_servers import living
from compose.log_place import base, places
from compose.log_reader import ServiceLog, log_files
from compose.logbook import Choice, Entry, merged, since
from shared.log_config import CHOICES
from shared.log_lines import encode, readable

LAST = 200
"""Lines shown when nothing says how many."""
POLL_S = 0.2


def _everywhere() -> list[Path]:
    """The folders of all servers of this user, those that run first."""
    running = [server.log_dir for server in living() if server.log_dir is not None]
    return list(dict.fromkeys([*running, *(place.path for place in places())]))


def _latest(port: int | None) -> Path:
    """The folder of the server that ran last, at that port if one is given. Raises `ClickException`."""
    found = [place for place in places() if port is None or place.path.name.partition("-")[0] == str(port)]
    live = [place.path for place in found if place.live]  # their run directories were chosen by hand
    if len(live) > 1:
        raise click.ClickException("\n".join(["several servers run; choose one:", *(f"  --log-dir {p}" for p in live)]))
    if found:
        return found[0].path
    try:
        where = str(base())
    except RuntimeError:
        where = "your home, which there is none of"
    at = f" of port {port}" if port is not None else ""
    raise click.ClickException(f"no server{at} has left logs in {where}; --log-dir names another folder")


def _chosen(log_dir: Path | None, run_dir: Path | None, port: int | None) -> Path | None:
    """The folder that was asked for; a server that the command line names goes before a folder of the environment."""
    told = click.get_current_context().get_parameter_source("log_dir")
    if told is ParameterSource.ENVIRONMENT and (run_dir is not None or port is not None):
        return None
    server_choice.only_one(log_dir=log_dir, run_dir=run_dir, port=port)
    return log_dir


def _folders(chosen: Path | None, run_dir: Path | None, port: int | None, request: str) -> list[Path]:
    """Where to read: the server that was chosen, else for a request everywhere. Raises `ClickException`."""
    if chosen is not None:
        return [chosen]
    if request and run_dir is None and port is None and (everywhere := _everywhere()):
        return everywhere
    server = server_choice.choose(run_dir, port)
    if server is None:
        return [_latest(port)]
    if server.log_dir is None:
        raise click.ClickException(f"{server.run_dir} names no log files; --log-dir names their folder")
    return [server.log_dir]


def _open(folders: list[Path], service: str | None, opened: dict[Path, ServiceLog], choice: Choice) -> list[ServiceLog]:
    """Opens logs that are not open yet and may hold what is chosen; returns those."""
    fresh = []
    files = [found for folder in folders for found in log_files(folder, debug=choice.level == "debug").items()]
    for path in (path for name, paths in files if service in (None, name) for path in paths):
        if path not in opened:
            try:
                opened[path] = log = ServiceLog(path)
            except FileNotFoundError:
                continue  # being rotated
            fresh.append(log)
    return fresh


def _follow(
    folders: list[Path], service: str | None, opened: dict[Path, ServiceLog], choice: Choice
) -> Iterator[list[Entry]]:
    """What is added from now on, for ever, a batch at a time."""
    while True:
        batch = [entry for log in opened.values() for entry in choice.entries(log.news())]
        for log in _open(folders, service, opened, choice):
            batch += choice.entries(log.history())
        yield sorted(batch, key=attrgetter("at"))
        time.sleep(POLL_S)


@click.command()
@click.argument("service", required=False)
@click.option("--follow", "-f", is_flag=True, help="Go on with what is added, until Ctrl-C.")
@click.option("--request", "request_id", default="", metavar="ID", help="Only what is about this request.")
@click.option("--level", type=click.Choice(CHOICES), help="Least level shown; by default info, with --request debug.")
@click.option(
    "--log-dir",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="FLARE_LOG_DIR",
    show_envvar=True,
    help="Folder of the log files; by default that of the server that runs, or ran last.",
)
@server_choice.PORT
@server_choice.RUN_DIR
@click.option("--since", "span", metavar="SPAN", help="Only the last SPAN: 90s, 10m, 2h, 1d.")
@click.option("--json", "as_json", is_flag=True, help="Lines of JSON, as they are in the files.")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=0),
    help=f"The last LINES; by default {LAST}, and all with --request or --since.",
)
def logs(
    service: str | None,
    follow: bool,
    request_id: str,
    level: str | None,
    log_dir: Path | None,
    run_dir: Path | None,
    port: int | None,
    span: str | None,
    as_json: bool,
    lines: int | None,
) -> None:
    """Shows the logs of a server, or of one SERVICE of it, in the order of time."""
    try:
        start = since(span, datetime.now(UTC)) if span else ""
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--since") from error
    choice = Choice(request_id, level or ("debug" if request_id else "info"), start)
    folders = _folders(_chosen(log_dir, run_dir, port), run_dir, port, request_id)
    where = ", ".join(map(str, folders))
    opened: dict[Path, ServiceLog] = {}
    try:
        _open(folders, service, opened, choice)
    except OSError as error:
        raise click.ClickException(f"cannot read {error.filename}: {error.strerror}") from error
    if not opened:
        there = ", ".join(sorted({name for folder in folders for name in log_files(folder)})) or "none at all"
        raise click.ClickException(f"no log{f' of {service}' if service else ''} in {where}; there is {there}")
    colours = sys.stdout.isatty()
    shown = LAST if lines is None and not (request_id or span) else lines

    def show(entry: Entry) -> None:
        text = encode(entry.event).decode() if as_json else readable(entry.event, colours=colours, date=True)
        click.echo(text, color=colours)

    try:
        past = deque(merged(choice.entries(log.history()) for log in opened.values()), shown)
        for entry in past:
            show(entry)
        if request_id and not past and shown != 0 and not follow:
            raise click.ClickException(f"no line about {request_id} in {where}")
        if follow:
            for batch in _follow(folders, service, opened, choice):
                for entry in batch:
                    show(entry)
    except KeyboardInterrupt:
        return
    finally:
        for log in opened.values():
            log.close()
