"""What cannot work is said at once and clearly; two servers live side by side; leftovers of dead ones go."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import psutil
import pytest

from compose.restarts import MOST_REFUSALS
from tests.fixtures.harness import Server


def ends(server: Server, seconds: float = 30) -> tuple[int, str]:
    """Exit code and output of a server that should not start."""
    code = server.processes["run"].wait(seconds)
    return code, server.log


def test_two_servers_live_on_one_machine(core: Path, server: Server) -> None:
    with Server(core) as other:
        other.wait_ready()
        assert other.url != server.url
        for each in (server, other):
            assert each.chat("say:both", max_tokens=9)["choices"][0]["message"]["content"] == "both"
    assert server.chat("say:still", max_tokens=9)["choices"][0]["message"]["content"] == "still"


def test_the_services_run_one_by_one_too(core: Path) -> None:
    with Server(core, supervised=False) as server:
        server.wait_ready()
        assert server.chat("say:alone", max_tokens=9)["choices"][0]["message"]["content"] == "alone"
        assert server.stop() == 0


def test_a_port_in_use_is_said_before_anything_loads(core: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with Server(core, ("--port", str(taken.getsockname()[1]))) as server:
            code, log = ends(server)
    assert code != 0
    assert "cannot listen" in log
    assert "worker.loaded" not in log


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--device", "cuda"), "not built yet"),
        (("--mtp-draft-tokens", "9"), "between 0 and 7"),
        (("--concurrency", "64"), "--concurrency"),
        (("--context-length", "9999"), "--context-length"),
        (("--headroom", "900T"), "headroom"),
    ],
)
def test_an_impossible_wish_is_refused_in_words(core: Path, arguments: tuple[str, ...], words: str) -> None:
    with Server(core, arguments) as server:
        code, log = ends(server)
    assert code != 0
    assert words in log
    assert "Traceback" not in log


def test_a_folder_that_is_no_core_is_refused(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        code, log = ends(server)
    assert code != 0
    assert "is not a core" in log


def test_a_recipe_that_is_not_there_ends_it_with_the_reason(core: Path) -> None:
    with Server(core, environment={"FLARE_RECIPE_MODULES": ""}) as server:
        code, log = ends(server)
    assert code == 1
    assert "no recipe 'scripted'" in log
    assert log.count("worker.failed") == MOST_REFUSALS


def test_leftovers_of_a_dead_server_go_at_the_next_start(core: Path) -> None:
    with Server(core) as server:
        server.wait_ready()
        server.tree()
        server.processes["run"].kill()
        server.processes["run"].wait()
        psutil.wait_procs([p for p in server.tree() if p.is_running()], timeout=8)
        abandoned = server.run_dir
        stale = server.memory / "flare-1-1-plan"
        stale.write_bytes(b"x")
        time.sleep(4)
        server._spawn("run", "run", str(core), "--port", "0")
        server.wait_ready()
        assert not abandoned.exists()
        assert not stale.exists()


def test_a_core_that_does_not_fit_is_refused_with_its_bill(core: Path) -> None:
    with Server(core, ("--headroom", "1024T")) as server:
        code, log = ends(server)
    assert code != 0
    assert "memory_refused" in log
    for line in ("pages", "headroom", "needed", "available"):
        assert line in log
