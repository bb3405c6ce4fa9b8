"""Several servers on one machine, with one folder of shared memory: none touches what another has."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.fixtures.harness import SERVICES, Server
from tests.fixtures.scripted.recipe import COPIES, make_core
from tests.system.conftest import SLOW
from tests.system.reader import LONG, Reader


class Neighbour(Server):
    """A server in a chosen run directory, with the folders of another server for everything else."""

    def __init__(self, core: Path, run_dir: Path, other: Server) -> None:
        folders = {"XDG_RUNTIME_DIR": str(other.run_dir.parent), "FLARE_SHM_DIR": str(other.memory)}
        super().__init__(core, ("--run-dir", str(run_dir)), environment={**SLOW, **folders})
        self._chosen = run_dir

    @property
    def run_dir(self) -> Path:
        return self._chosen


def test_one_of_three_is_killed_and_comes_back_and_sweeps_what_is_its_own(core: Path, tmp_path: Path) -> None:
    copies = make_core(tmp_path / "copies", COPIES)
    with Server(core) as server:
        server.wait_ready()
        near = [Neighbour(copies, tmp_path / f"run{i}", server) for i in range(2)]
        with near[0], near[1], ThreadPoolExecutor(2) as pool:
            for neighbour in near:
                neighbour.wait_ready()
            pids = [[neighbour.process(name).pid for name in SERVICES] for neighbour in near]
            readers = [Reader(neighbour, pool, f"{LONG} {i}", max_tokens=250) for i, neighbour in enumerate(near)]
            assert all(reader.begun.wait(20) for reader in readers)
            abandoned, children = server.run_dir, server.tree()[1:]
            theirs = {path for path in server.memory.iterdir() if not any(f"-{p.pid}-" in path.name for p in children)}
            assert len(theirs) == 4
            server.processes["run"].kill()
            server.processes["run"].wait()
            psutil.wait_procs(children, timeout=8)
            server._spawn("run", "run", str(core), "--port", "0")
            server.wait_ready()
            assert not abandoned.exists()
            assert theirs < set(server.memory.iterdir())
            assert len(list(server.memory.iterdir())) == 6
            for reader in readers:
                reader.text()
            assert [[neighbour.process(name).pid for name in SERVICES] for neighbour in near] == pids
            for each in (server, *near):
                assert each.chat("say:both", max_tokens=9)["choices"][0]["message"]["content"] == "both"
            assert all(neighbour.stop() == 0 for neighbour in near)
            assert len(list(server.memory.iterdir())) == 2


@pytest.mark.parametrize(
    ("command", "words"), [("run", "another server runs in"), ("scheduler", "another scheduler runs in")]
)
def test_the_run_directory_of_a_live_server_is_refused(server: Server, core: Path, command: str, words: str) -> None:
    answer = subprocess.run(
        (sys.executable, "-m", "compose.cli", command, str(core), "--run-dir", str(server.run_dir)),
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert answer.returncode != 0
    assert words in answer.stderr
    assert "worker.loaded" not in answer.stderr
    assert server.chat("say:unharmed", max_tokens=20)["choices"][0]["message"]["content"] == "unharmed"
