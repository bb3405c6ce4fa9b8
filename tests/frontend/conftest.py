"""Real HTTP against a real frontend in a thread, over real ZeroMQ to a scripted scheduler."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import orjson
import pytest

from services.frontend.config import FrontendConfig
from services.frontend.service import Frontend, run
from tests.frontend.client import COMPLETIONS, Chat
from tests.frontend.scripted_scheduler import SOON_S, Script, ScriptedScheduler
from tests.frontend.small_core import write_core

if TYPE_CHECKING:
    from tests.frontend.text_cores import Both


@dataclass(frozen=True)
class Deployment:
    """A frontend and its scheduler."""

    scheduler: ScriptedScheduler
    chat: Chat
    run_dir: Path

    @property
    def completions(self) -> Chat:
        """The other endpoint."""
        return Chat(self.chat.client, COMPLETIONS)

    def at(self, path: str) -> Chat:
        """An endpoint by its path."""
        return Chat(self.chat.client, path)


@pytest.fixture(scope="session")
def core(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The core's folder and digest."""
    folder = tmp_path_factory.mktemp("core")
    return folder, write_core(folder)


@contextmanager
def deploy(core: tuple[Path, str], run_dir: Path, **configuration: Any) -> Iterator[Deployment]:
    """A running frontend with its scripted scheduler; `configuration` is of `FrontendConfig`."""
    run_dir.chmod(0o700)
    scheduler = ScriptedScheduler(run_dir, core[1])
    handles: queue.SimpleQueue[Frontend] = queue.SimpleQueue()
    codes: list[int] = []
    config = FrontendConfig(core=core[0], run_dir=run_dir, port=0, **configuration)

    def started(frontend: Frontend) -> None:
        handles.put(frontend)

    thread = threading.Thread(target=lambda: codes.append(run(config, started)), daemon=True)
    thread.start()
    frontend = handles.get(timeout=SOON_S)
    address = orjson.loads(config.notice.read_bytes())
    url = f"http://127.0.0.1:{address['port']}"
    with httpx.Client(base_url=url, timeout=10) as client:
        wait_ready(client)
        yield Deployment(scheduler, Chat(client), run_dir)
    frontend.stop_from_elsewhere()
    thread.join(SOON_S)
    scheduler.close()
    assert codes == [0]
    assert not config.notice.exists()


@pytest.fixture(scope="session")
def deployment(core: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """One running frontend for all tests that leave it running."""
    with deploy(core, tmp_path_factory.mktemp("run")) as deployed:
        yield deployed


def wait_ready(client: httpx.Client, timeout: float = SOON_S) -> None:
    """Waits until `/ready` says so."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            if client.get("/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        assert time.monotonic() < deadline, "never ready"
        time.sleep(0.02)


@pytest.fixture
def served(deployment: Deployment) -> Iterator[Deployment]:
    """The shared frontend with a fresh record; afterwards nothing may run in the scheduler any more."""
    deployment.scheduler.received.clear()
    deployment.scheduler.script = Script(tokens=tuple(b"hello"))
    deployment.scheduler.by_choice = {}
    yield deployment
    deadline = time.monotonic() + SOON_S
    while deployment.scheduler.running and time.monotonic() < deadline:
        time.sleep(0.01)
    assert deployment.scheduler.running == 0, "a request leaked"


@pytest.fixture(scope="session")
def cores(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Both]:
    """`every_core`, for all tests of prompts."""
    from tests.frontend.text_cores import every_core  # brings transformers, which the other tests do not need

    return every_core(tmp_path_factory.mktemp("cores"))
