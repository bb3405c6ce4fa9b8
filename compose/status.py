"""`flare status`: a live table of a server's services, its speed, acceptance, queue and pages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from compose import server_choice
from compose.local_servers import SERVICES, LocalServer
from compose.scrape import Scrape, scrape
from compose.status_board import Board, board

if TYPE_CHECKING:
    from rich.console import Group

UNSAID = Scrape(down="it does not say where its metrics are")
"""`flare run` has every service tell."""
UNASKED = Scrape(unknown=True)
"""A server elsewhere says nothing of its other services, and a service that was started by hand need not."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server: a run directory, or URLs of its API and of its services' metrics. Asked anew in every look."""

    local: LocalServer | None = None
    url: str = ""
    others: tuple[str, ...] = ()

    def addresses(self) -> tuple[dict[str, str], dict[str, int]]:
        """Where to look for each service, and its pid if that is known."""
        if self.local is None:
            return {"frontend": self.url, **dict(map(_named, self.others))}, {}
        metrics, address = self.local.metrics, self.local.address
        urls = {service: found.url for service, found in metrics.items()}
        pids = {service: found.pid for service, found in metrics.items()}
        if address is not None and "frontend" not in urls:
            urls["frontend"], pids["frontend"] = address.url, address.pid
        return urls, pids

    def title(self) -> str:
        """The server in a line."""
        address = None if self.local is None else self.local.address
        return self.url or (address.url if address else f"no API yet, {self.local.run_dir}" if self.local else "")


def _named(given: str) -> tuple[str, str]:
    """`scheduler=http://host:9101`."""
    name, found, url = given.partition("=")
    if not found or name not in SERVICES:
        raise click.BadParameter(f"{given!r} is not SERVICE=URL", param_hint="--metrics")
    return name, server_choice.base_url(url)


@dataclass(slots=True)
class Looks:
    """The last look at every service, against which the next one is held."""

    target: Target
    _before: dict[str, Scrape] = field(default_factory=dict)
    _at: float = 0.0

    def next(self) -> Board:
        """Looks at all services at once."""
        urls, pids = self.target.addresses()
        with ThreadPoolExecutor(len(SERVICES)) as threads:
            found = dict(zip(urls, threads.map(scrape, urls.values()), strict=True))
        unseen = UNSAID if self.target.local is not None and self.target.local.supervised else UNASKED
        after = {service: found.get(service, unseen) for service in SERVICES}
        now = time.monotonic()
        made = board(self._before, after, pids, now - self._at, time.time())
        self._before, self._at = after, now
        return made


def _boards(looks: Looks, interval: float) -> Iterator[Board]:
    """A board every `interval` seconds; the first look only gives the second something to be held against."""
    looks.next()
    while True:
        time.sleep(interval)
        yield looks.next()


def _drawn(title: str, found: Board) -> Group:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    services = Table("service", "pid", "state", "up", "memory", "cpu", title=title, title_justify="left")
    for row in found.services:
        style = "green" if row.state == "ready" else "red" if row.state.startswith("down") else "yellow"
        services.add_row(row.name, row.pid, Text(row.state, style=style), row.up, row.memory, row.cpu)
    values = Table(show_header=False)
    for name, value in found.values:
        values.add_row(name, value)
    return Group(services, values)


def _target(url: str | None, run_dir: Path | None, port: int | None, metrics: tuple[str, ...]) -> Target:
    """Raises `ClickException` if it is not clear which server is meant."""
    server_choice.only_one(url=url, run_dir=run_dir, port=port)
    if url is not None:
        base = server_choice.base_url(url)
        own = None if metrics else server_choice.local_at(base)
        return Target(local=own) if own is not None else Target(url=base, others=metrics)
    found = server_choice.choose(run_dir, port)
    if found is not None:
        return Target(local=found)
    if port is not None:
        return Target(url=server_choice.at_port(port), others=metrics)
    raise click.ClickException("no server of yours runs here; --url, --port or --run-dir names another")


@click.command()
@click.option("--url", help="Base URL of a server's API; by default the one server of yours on this machine.")
@server_choice.PORT
@server_choice.RUN_DIR
@click.option(
    "--metrics", multiple=True, metavar="SERVICE=URL", help="With --url: where another service's metrics are."
)
@click.option(
    "--once", is_flag=True, help="Print one table and end; exit code 1 if a service is known not to be ready."
)
@click.option(
    "--interval", type=click.FloatRange(min=0.1), default=1.0, show_default=True, help="Seconds between two looks."
)
def status(
    url: str | None, run_dir: Path | None, port: int | None, metrics: tuple[str, ...], once: bool, interval: float
) -> None:
    """Shows what a server does: its services, rounds and tokens a second, acceptance, queue and pages."""
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError as error:
        raise click.ClickException("flare status needs the package rich, which is not installed here") from error
    target = _target(url, run_dir, port, metrics)
    looks, console = Looks(target), Console()
    boards = _boards(looks, interval)
    try:
        if once:
            found = next(boards)
            console.print(_drawn(target.title(), found))
            raise SystemExit(not all(row.well for row in found.services))
        with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
            for found in boards:
                live.update(_drawn(target.title(), found), refresh=True)
    except KeyboardInterrupt:
        return
