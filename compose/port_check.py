"""Whether an address can be listened at, asked before anything is prepared: a part of `flare run`.

The frontend binds for itself later. What others do in between is found by asking again.
"""

from __future__ import annotations

import errno
import socket

from shared.errors import ProcessError


def check_port(host: str, port: int) -> None:
    """Binds the address for a moment; port 0 is any. Raises `ProcessError` that says what to change."""
    if not 0 <= port < 1 << 16:
        raise ProcessError(f"port {port} is not between 0 and 65535")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ProcessError(f"{host} is no host to listen at ({reason}): choose another --host") from error
    family, _, _, _, address = found[0]
    try:
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the frontend: closing ones do not matter
            trial.bind(address)
    except OSError as error:
        raise ProcessError(_told(host, port, error)) from error


def _told(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use: choose another --port"
    if error.errno == errno.EACCES:
        return f"you may not listen at port {port} of {host}: choose another --port"
    if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
        return f"{host} is no address of this machine: choose another --host"
    return f"cannot listen at port {port} of {host}: {error.strerror or error}"
