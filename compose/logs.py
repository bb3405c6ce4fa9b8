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

from compose.log_place import base, places
from compose.log_reader import ServiceLog, log_files
from compose.logbook import Choice, Entry, merged, since
from shared.log_lines import encode, readable
from shared.logs import LEVELS

LAST = 200
"""Lines shown when nothing says how many."""
POLL_S = 0.2


def _folder(chosen: Path | None) -> Path:
    """Where to read: the chosen folder, else that of the living or the latest server. Raises `ClickException`."""
    if chosen is not None:
        return chosen
    found = places()
    if not found:
        try:
            where = str(base())
        except RuntimeError:
            where = "your home, which there is none of"
        raise click.ClickException(f"no server has left logs in {where}; --log-dir names another folder")
    others = [str(place.path) for place in found[1:] if place.live]
    if found[0].live and others:
        click.echo(f"Several servers run. This is {found[0].path}; --log-dir also takes {', '.join(others)}", err=True)
    return found[0].path


def _open(folder: Path, service: str | None, opened: dict[Path, ServiceLog]) -> list[ServiceLog]:
    """Opens logs that are not open yet; returns those."""
    fresh = []
    for name, path in log_files(folder).items():
        if path not in opened and service in (None, name):
            try:
                opened[path] = log = ServiceLog(path)
            except FileNotFoundError:
                continue  # being rotated
            fresh.append(log)
    return fresh


def _follow(folder: Path, service: str | None, opened: dict[Path, ServiceLog], choice: Choice) -> Iterator[list[Entry]]:
    """What is added from now on, for ever, a batch at a time."""
    while True:
        batch = [entry for log in opened.values() for entry in choice.entries(log.news())]
        for log in _open(folder, service, opened):
            batch += choice.entries(log.history())
        yield sorted(batch, key=attrgetter("at"))
        time.sleep(POLL_S)


@click.command()
@click.argument("service", required=False)
@click.option("--follow", "-f", is_flag=True, help="Go on with what is added, until Ctrl-C.")
@click.option("--request", "request_id", default="", metavar="ID", help="Only what is about this request.")
@click.option(
    "--level", type=click.Choice(list(LEVELS)), help="Least level shown; by default info, with --request debug."
)
@click.option(
    "--log-dir",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="FLARE_LOG_DIR",
    show_envvar=True,
    help="Folder of the log files; by default that of the server that runs, or ran last.",
)
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
    folder = _folder(log_dir)
    opened: dict[Path, ServiceLog] = {}
    try:
        _open(folder, service, opened)
    except OSError as error:
        raise click.ClickException(f"cannot read {error.filename}: {error.strerror}") from error
    if not opened:
        there = ", ".join(log_files(folder)) or "none at all"
        raise click.ClickException(f"no log{f' of {service}' if service else ''} in {folder}; there is {there}")
    colours = sys.stdout.isatty()
    shown = LAST if lines is None and not (request_id or span) else lines

    def show(entry: Entry) -> None:
        text = encode(entry.event).decode() if as_json else readable(entry.event, colours=colours, date=True)
        click.echo(text, color=colours)

    try:
        for entry in deque(merged(choice.entries(log.history()) for log in opened.values()), shown):
            show(entry)
        if follow:
            for batch in _follow(folder, service, opened, choice):
                for entry in batch:
                    show(entry)
    except KeyboardInterrupt:
        return
    finally:
        for log in opened.values():
            log.close()
