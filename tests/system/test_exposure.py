"""Only the API and the metrics listen, on loopback; all else are sockets in a private folder without pickle (B63)."""

from __future__ import annotations

import ast
import os
import secrets
import stat
from pathlib import Path

import psutil
import zmq

from shared.channel import MAXIMUM_BYTES, RunDirectory
from tests.fixtures.harness import SERVICES, Server
from tests.system.scrapes import url

ROOT = Path(__file__).resolve().parents[2]


def test_the_only_listeners_are_the_api_and_the_metrics_on_the_loopback_address(server: Server) -> None:
    listening = {
        (connection.laddr.ip, connection.laddr.port)
        for process in server.tree()
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    expected = {server.url, *(url(server, service) for service in SERVICES)}
    assert {f"http://{ip}:{port}" for ip, port in listening} == expected
    assert {ip for ip, _ in listening} == {"127.0.0.1"}
    assert server.url.startswith("http://127.0.0.1:")


def test_unix_sockets_lie_in_a_private_folder(server: Server) -> None:
    assert stat.S_IMODE(server.run_dir.stat().st_mode) == 0o700
    sockets = [entry for entry in server.run_dir.iterdir() if stat.S_ISSOCK(entry.stat().st_mode)]
    assert sockets
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 for path in server.memory.iterdir())


def test_foreign_frames_are_dropped_and_nothing_crashes(server: Server) -> None:
    before = {name: server.process(name).pid for name in ("frontend", "scheduler", "worker")}
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    folder = RunDirectory(server.run_dir)
    try:
        for address in (folder.frontends, folder.workers):
            socket = context.socket(zmq.DEALER)
            socket.setsockopt(zmq.SNDTIMEO, 5_000)
            socket.connect(address)
            for size in range(500):
                socket.send(secrets.token_bytes(size))
            socket.send_multipart([b"a", b"b", b"c"])
            socket.send(os.urandom(64) * (MAXIMUM_BYTES // 64 + 1))
            socket.close(linger=2_000)
    finally:
        context.term()
    assert server.chat("say:unharmed", max_tokens=20)["choices"][0]["message"]["content"] == "unharmed"
    assert {name: server.process(name).pid for name in before} == before


def imported(path: Path) -> set[str]:
    """Top-level names of all modules that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
    return found


def test_no_source_imports_pickle() -> None:
    sources = [
        path for folder in ("shared", "services", "recipes", "compose") for path in (ROOT / folder).rglob("*.py")
    ]
    assert len(sources) > 50
    forbidden = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"}
    assert not [path for path in sources if imported(path) & forbidden]
