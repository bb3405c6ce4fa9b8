"""Which server `flare status`, `flare chat` and `flare logs` are about: all three choose in this way.

Without a choice it is the one server of this user that runs here. With several the person has to say which, since a
guess would change with the traffic.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import click

from compose.local_servers import LocalServer, living
from compose.readiness import Address

DEFAULT_PORT = 8000
RUN_DIR = click.option("--run-dir", type=click.Path(path_type=Path), help="Run directory of a server on this machine.")
PORT = click.option("--port", type=click.IntRange(1, 65535), help="Port of a server on this machine.")


def only_one(**given: object) -> None:
    """Raises `UsageError` if a server was chosen in several ways at once; options by their parameters' names."""
    chosen = [f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None]
    if len(chosen) > 1:
        raise click.UsageError(f"{' and '.join(chosen)} each choose a server: give one of them")


def base_url(given: str) -> str:
    """The base URL in what a person typed: without a scheme it is http, and a trailing /v1 is the API's own.

    Raises `BadParameter`.
    """
    url = (given if "://" in given else f"http://{given}").rstrip("/").removesuffix("/v1").rstrip("/")
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return url
    except ValueError:
        pass  # a port that is none
    raise click.BadParameter(f"{given!r} is not a URL such as http://127.0.0.1:{DEFAULT_PORT}", param_hint="--url")


def at_port(port: int | None) -> str:
    """The URL of that port of this machine."""
    return f"http://127.0.0.1:{port or DEFAULT_PORT}"


def _listed(servers: Sequence[LocalServer]) -> str:
    ports = [server.address.port if server.address else None for server in servers]
    lines = []
    for server, port in zip(servers, ports, strict=True):
        by_port = f"--port {port}  or  " if port is not None and ports.count(port) == 1 else ""
        lines.append(f"  {by_port}--run-dir {server.run_dir}")
    return "\n".join(["several servers run; choose one:", *lines])


def choose(run_dir: Path | None, port: int | None) -> LocalServer | None:
    """The server that is meant; None if none of this user's runs, or none of them at that port.

    Raises `ClickException` if several could be meant, or there is no such folder.
    """
    if run_dir is not None:
        if not run_dir.is_dir():
            raise click.ClickException(f"there is no run directory {run_dir}")
        return LocalServer(run_dir)
    found = [server for server in living() if port is None or (server.address and server.address.port == port)]
    if len(found) > 1:
        raise click.ClickException(_listed(found))
    return found[0] if found else None


def _loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_at(address: Address, host: str) -> bool:
    if host in (address.host, address.reachable) or (_loopback(host) and _loopback(address.reachable)):
        return True
    return address.host in ("0.0.0.0", "::") and host == socket.gethostname().lower()


def local_at(url: str) -> LocalServer | None:
    """The server of this user that is at a base URL, or None: it is elsewhere, somebody else's, or behind a proxy."""
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.path:
        return None
    for server in living():
        address = server.address
        if address is not None and address.port == (parts.port or 80) and _is_at(address, parts.hostname or ""):
            return server
    return None
