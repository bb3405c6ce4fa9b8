"""The supervisor is SIGKILLed: nobody outlives it for long, whatever they do and however it was started (B59)."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.fixtures.harness import SERVICES, Server, wait_until

GONE_S = 8.0


def supervisor(server: Server) -> psutil.Process:
    """The process that runs `flare run`, be it started by us or by what we started."""
    for process in server.tree():
        command = process.cmdline()
        if "compose.cli" in command[:4] and "run" in command:
            return process
    raise LookupError("no supervisor")


def kill_supervisor(server: Server) -> None:
    """Kills it alone, and waits for all that it had started."""
    top = supervisor(server)
    children = top.children(recursive=True)
    assert len(children) == len(SERVICES)
    top.kill()
    server.abandoned = True
    _, alive = psutil.wait_procs(children, timeout=GONE_S)
    assert not alive
    server.processes["run"].wait(GONE_S)


@pytest.mark.parametrize(
    "prefix",
    [
        pytest.param(("sh", "-c", '"$@"; exit 9', "sh"), id="sh"),
        pytest.param(("setsid", "--wait"), id="setsid", marks=pytest.mark.slow),
    ],
)
def test_idle_services_end_with_their_supervisor(core: Path, prefix: Sequence[str]) -> None:
    with Server(core, prefix=prefix) as server:
        server.wait_ready()
        kill_supervisor(server)


def test_a_worker_in_a_long_step_ends_too(core: Path) -> None:
    with Server(core) as server, ThreadPoolExecutor(1) as pool:
        server.wait_ready()
        answer = pool.submit(server.chat, "sleep:600;say:late", max_tokens=9)
        wait_until(lambda: "request.admitted" in server.log, 10, "admitted")
        kill_supervisor(server)
        assert answer.exception(GONE_S) is not None
