"""What cannot work is said at once and clearly; two servers live side by side; leftovers of dead ones go."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import psutil
import pytest

from tests.fixtures.harness import Server, wait_until


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


def test_a_port_in_use_is_one_sentence_before_anything_starts(core: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        taken_port = taken.getsockname()[1]
        with Server(core, ("--port", str(taken_port))) as server:
            code, log = ends(server)
            assert not server.log_dir.parent.exists(), "no folder for logs that say nothing"
    assert (code, log) == (1, f"Error: port {taken_port} of 127.0.0.1 is in use: choose another --port\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--port", "70000"), "port 70000 is not between 0 and 65535"),
        (("--host", "192.0.2.1"), "192.0.2.1 is no address of this machine: choose another --host"),
        (("--host", "no host"), "no host is no host to listen at"),
    ],
)
def test_an_address_that_cannot_be_is_refused_and_leaves_no_logs(
    core: Path, arguments: tuple[str, ...], words: str
) -> None:
    with Server(core, arguments) as server:
        code, log = ends(server)
        assert not server.log_dir.parent.exists()
    assert code == 1
    assert log.startswith(f"Error: {words}")
    assert log.count("\n") == 1


def test_a_port_that_another_takes_while_the_frontend_is_down_ends_the_server_in_words(core: Path) -> None:
    with Server(core) as server:
        server.wait_ready()
        port = int(server.url.rpartition(":")[2])
        frontend = server.process("frontend")
        frontend.suspend()
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            frontend.kill()
            wait_until(lambda: _binds(taken, port), 10, "the port is free for a moment")
            code, log = ends(server)
    assert code == 1
    assert log.endswith(f"Error: port {port} of 127.0.0.1 is in use: choose another --port\n")
    assert "supervisor.gave_up" not in log


def _binds(taken: socket.socket, port: int) -> bool:
    try:
        taken.bind(("127.0.0.1", port))
    except OSError:
        return False
    taken.listen()
    return True


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--device", "cuda"), "needs an NVIDIA GPU"),
        (("--headroom", "900T"), "headroom"),
    ],
)
def test_an_impossible_wish_is_refused_in_words(core: Path, arguments: tuple[str, ...], words: str) -> None:
    with Server(core, arguments) as server:
        code, log = ends(server)
    assert code != 0
    assert words in log
    assert "Traceback" not in log


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--mtp-draft-tokens", "9"), "between 0 and 7"),
        (("--speculative-fixed-width", "9"), "fixed width of 9"),
        (("--embedding-table-storage", "disk"), "no embedding table"),
        (("--concurrency", "64"), "--concurrency"),
        (("--context-length", "9999"), "--context-length"),
    ],
)
def test_what_the_core_was_not_prepared_for_is_one_sentence_before_any_service_starts(
    core: Path, arguments: tuple[str, ...], words: str
) -> None:
    with Server(core, arguments) as server:
        code, log = ends(server)
    assert code == 1
    assert words in log
    assert log.startswith("Error: ")
    assert log.count("\n") == 1


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
    assert log.count("worker.failed") == 1


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
    assert log.count("worker.failed") == log.count("memory_refused") == 1
    for line in ("pages", "headroom", "needed", "available"):
        assert line in log
