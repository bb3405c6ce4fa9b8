"""A frontend in a process of its own, with a scripted scheduler, for tests that end or signal it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import orjson

from tests.fixtures.harness import wait_until
from tests.frontend.client import Chat
from tests.frontend.conftest import wait_ready
from tests.frontend.scripted_scheduler import SOON_S, ScriptedScheduler

MAIN = """
import sys
from pathlib import Path
from services.frontend.config import FrontendConfig
from services.frontend.service import run
from shared import logs
logs.configure("frontend", form="json")
core, run_dir, port, drain = sys.argv[1:]
sys.exit(run(FrontendConfig(core=Path(core), run_dir=Path(run_dir), port=int(port), drain_timeout=float(drain),
                            ready_timeout=1.0)))
"""


@dataclass
class Child:
    """A frontend process of its own with its scheduler."""

    process: subprocess.Popen[bytes]
    chat: Chat
    run_dir: Path
    digest: str
    scheduler: ScriptedScheduler
    log: Path

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(SOON_S)


def spawn(core: Path, run_dir: Path, log: Path, *, port: int = 0, drain: float = 5.0) -> subprocess.Popen[bytes]:
    with log.open("ab") as target:
        return subprocess.Popen(
            [sys.executable, "-c", MAIN, str(core), str(run_dir), str(port), str(drain)], stderr=target
        )


def address(run_dir: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + SOON_S
    while True:
        try:
            found = orjson.loads((run_dir / "frontend.json").read_bytes())
        except FileNotFoundError:
            assert process.poll() is None, "the frontend ended"
            assert time.monotonic() < deadline
            time.sleep(0.02)
            continue
        assert found["pid"] == process.pid
        return f"http://{found['host']}:{found['port']}"


@contextmanager
def deployed(core: tuple[Path, str], tmp_path: Path, drain: float = 5.0) -> Iterator[Child]:
    run_dir = tmp_path / "run"
    scheduler = ScriptedScheduler(run_dir, core[1])
    process = spawn(core[0], run_dir, tmp_path / "log", drain=drain)
    try:
        with httpx.Client(base_url=address(run_dir, process), timeout=10) as client:
            wait_ready(client)
            yield Child(process, Chat(client), run_dir, core[1], scheduler, tmp_path / "log")
    finally:
        process.kill()
        process.wait()
        scheduler.close()


def unready(child: Child) -> str:
    """Waits until the frontend says that it is not ready, and returns why; each look is a connection of its own."""
    looks: list[httpx.Response] = []

    def told() -> bool:
        looks.append(httpx.get(f"{child.chat.client.base_url}/ready"))
        return looks[-1].status_code == 503

    wait_until(told, SOON_S, "it is not ready")
    return str(looks[-1].json()["reason"])
