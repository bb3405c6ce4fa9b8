"""`/metrics`, `/health` and `/ready` of one service on a port of their own, in threads that leave its loop alone.

Imported by the three services. The bound address lies in RUN_DIR/SERVICE.metrics.json while the process serves it. No
request is logged; one that comes slowly, or while many others are served, is dropped.
"""

from __future__ import annotations

import json
import os
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import structlog
from prometheus_client import CONTENT_TYPE_LATEST

from shared.channel import RunDirectory
from shared.errors import ProcessError
from shared.exposition import Exposition
from shared.metrics_address import notice

AT_ONCE = 16
"""Connections that are served at the same time."""
SILENCE_S = 3.0
"""How long a client may take for a line of its request."""
POLL_S = 0.1

log = structlog.get_logger()


class _Answers(BaseHTTPRequestHandler):
    server: _Listener
    server_version = "flare"
    sys_version = ""
    timeout = SILENCE_S

    def do_GET(self) -> None:
        """Answers one of the three paths."""
        exposition, path = self.server.exposition, self.path.partition("?")[0]
        if path == "/metrics":
            self._send(200, CONTENT_TYPE_LATEST, exposition.render())
        elif path in ("/health", "/ready"):
            good, reason = ("alive", exposition.alive()) if path == "/health" else ("ready", exposition.unready())
            body = {"status": f"not {good}", "reason": reason} if reason else {"status": good}
            self._send(503 if reason else 200, "application/json", json.dumps(body).encode())
        else:
            self._send(404, "application/json", b'{"status": "not found"}')

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: probes come every few seconds."""


class _Listener(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 32

    def __init__(self, family: socket.AddressFamily, address: Any, exposition: Exposition) -> None:
        self.address_family = family
        self.exposition = exposition
        self._free = threading.BoundedSemaphore(AT_ONCE)
        super().__init__(address, _Answers)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is none of our business; a fault of ours costs this one answer."""
        log.debug("metrics.unanswered", exc_info=True)


def _listen(host: str, port: int, exposition: Exposition) -> _Listener:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return _Listener(family, address, exposition)
    except OSError as error:
        raise ProcessError(f"cannot listen for metrics at {host}:{port}: {error.strerror or error}") from error


@contextmanager
def served(exposition: Exposition, service: str, host: str, port: int | None, run_dir: Path) -> Iterator[None]:
    """Serves while the context lasts; with no port nothing. Port 0 takes a free one. Raises `ProcessError`."""
    if port is None:
        yield
        return
    folder = RunDirectory(run_dir).ensure().path
    listener = _listen(host, port, exposition)
    thread = threading.Thread(target=listener.serve_forever, args=(POLL_S,), name="metrics", daemon=True)
    thread.start()
    place = notice(folder, service)
    bound = listener.server_address
    making = place.with_suffix(f".{os.getpid()}")
    making.write_text(json.dumps({"host": str(bound[0]), "port": bound[1], "pid": os.getpid()}))
    making.replace(place)
    log.info("metrics.listening", host=str(bound[0]), port=bound[1])
    try:
        yield
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()
        _withdraw(place)


def _withdraw(place: Path) -> None:
    """Removes the address file, unless a successor has written it since."""
    try:
        if json.loads(place.read_bytes())["pid"] == os.getpid():
            place.unlink()
    except (OSError, ValueError, KeyError, TypeError):
        return
