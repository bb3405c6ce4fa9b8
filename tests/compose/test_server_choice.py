"""How commands find the server that is meant: by what they are given, or because only one runs."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from compose.local_servers import LocalServer
from compose.run_directory import LockedRunDirectory
from compose.server_choice import base_url, choose, local_at, only_one

Start = Callable[..., LocalServer]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Leaves what a living server leaves."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    held = []

    def begin(port: int, host: str = "127.0.0.1") -> LocalServer:
        held.append(LockedRunDirectory(None))
        notice = {"host": host, "port": port, "pid": 1}
        (held[-1].path / "frontend.json").write_text(json.dumps(notice))
        return LocalServer(held[-1].path)

    yield begin
    for each in held:
        each.release()


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://h:1", "http://h:1"),
        ("http://h:1/", "http://h:1"),
        ("http://h:1/v1", "http://h:1"),
        ("http://h:1/v1/", "http://h:1"),
        ("https://h/flare/v1/", "https://h/flare"),
        ("http://h/av1", "http://h/av1"),
        ("127.0.0.1:9552", "http://127.0.0.1:9552"),
        ("localhost:9552/v1", "http://localhost:9552"),
        ("[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_what_people_type_as_a_url(given: str, url: str) -> None:
    assert base_url(given) == url


@pytest.mark.parametrize("given", ["", "http://", "http://h:port", "h:70000", "ftp://h", "http://[::1", "/v1"])
def test_what_is_no_url_is_told(given: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a URL"):
        base_url(given)


def test_the_only_one_or_the_chosen_one(start: Start) -> None:
    assert choose(None, None) is None
    first = start(1)
    assert choose(None, None) == first
    second = start(2)
    assert (choose(None, 1), choose(None, 2), choose(None, 3)) == (first, second, None)
    assert choose(second.run_dir, None) == second
    with pytest.raises(click.ClickException, match="several servers run"):
        choose(None, None)
    with pytest.raises(click.ClickException, match="no run directory"):
        choose(Path("/nowhere"), None)


def test_servers_at_one_port_are_told_apart_by_their_folders(start: Start) -> None:
    servers = [start(1), start(1, "::1")]
    with pytest.raises(click.ClickException) as told:
        choose(None, 1)
    assert "--port" not in told.value.message
    assert all(f"--run-dir {server.run_dir}" in told.value.message for server in servers)


def test_two_choices_are_one_too_many() -> None:
    only_one(url=None, run_dir=None, port=0)
    with pytest.raises(click.UsageError, match="--url and --run-dir"):
        only_one(url="x", run_dir=Path("y"), port=None)


def test_a_url_of_ones_own_server_is_known(start: Start) -> None:
    own = start(9)
    for url in ("http://127.0.0.1:9", "http://localhost:9", "http://LOCALHOST:9"):
        assert local_at(url) == own
    for url in ("http://127.0.0.1:8", "http://10.9.8.7:9", "http://h:9", "https://127.0.0.1:9", "http://localhost:9/x"):
        assert local_at(url) is None
    everywhere = start(10, "0.0.0.0")
    assert local_at(f"http://{socket.gethostname()}:10") == everywhere
