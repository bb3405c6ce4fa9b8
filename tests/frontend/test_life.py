"""A frontend's life: its port, its drain, signals, faults of its own, and what it leaves in memory and logs."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import httpx
import orjson
import psutil
import pytest

from services.frontend.config import FrontendConfig
from services.frontend.link import SchedulerLink
from services.frontend.service import run
from shared.messages.frontend import FromScheduler
from shared.messages.scheduler import Cancel
from tests.frontend.child import address, deployed, spawn, unready
from tests.frontend.client import MESSAGES, Answer
from tests.frontend.scripted_scheduler import SOON_S, STUCK, Script, ScriptedScheduler
from tests.frontend.small_core import END


def test_drain_lets_streams_finish(core: tuple[Path, str], tmp_path: Path) -> None:
    with deployed(core, tmp_path, drain=20.0) as child:
        child.scheduler.script = Script((*b"hello" * 20, END), (1,), pause_s=0.02)
        with child.chat.streaming() as events:
            answer = next(events)
            child.process.send_signal(signal.SIGTERM)
            assert unready(child) == "the server is shutting down"
            refused = httpx.post(f"{child.chat.client.base_url}/v1/chat/completions", json={"messages": MESSAGES})
            assert refused.status_code == 503
            for _ in events:
                pass
        assert (answer.text, answer.done, answer.error) == ("hello" * 20, True, None)
        assert child.process.wait(SOON_S) == 0
        assert not (child.run_dir / "frontend.json").exists()


@pytest.mark.parametrize("second", [False, True])
def test_drain_limit_and_second_signal(core: tuple[Path, str], tmp_path: Path, second: bool) -> None:
    with deployed(core, tmp_path, drain=20.0 if second else 0.3) as child:
        child.scheduler.script = STUCK
        answer = Answer()
        with child.chat.streaming() as events:
            answer = next(events)
            told = time.monotonic()
            child.process.send_signal(signal.SIGTERM)
            if second:
                unready(child)  # it has taken the first
                child.process.send_signal(signal.SIGTERM)
            for _ in events:
                pass
        assert answer.error is not None
        assert answer.error["code"] == "service_unavailable"
        assert child.process.wait(SOON_S) == 0
        assert time.monotonic() - told < 10, "half of the longer limit"
        assert len(child.scheduler.wait_for(Cancel)) == 1


def test_memory_logs_and_a_quick_end(core: tuple[Path, str], tmp_path: Path) -> None:
    with deployed(core, tmp_path) as child:
        child.scheduler.script = Script((*b"secret-answer", END), (4,))
        for _ in range(200):
            child.chat.whole(messages=[{"role": "user", "content": "secret-question"}])
        child.chat.client.get("/health")
        rss = psutil.Process(child.process.pid).memory_info().rss
        assert rss < 150 << 20, f"{rss >> 20} MiB"
        assert child.end() == 0
        log = child.log.read_text()
        assert "secret" not in log
        assert "health" not in log
        events = [orjson.loads(line) for line in log.splitlines()]
        by_request = [event["event"] for event in events if "request" in event]
        assert by_request == ["request.received", "request.tokenised", "request.finished"] * 200
        assert {event["event"] for event in events} >= {"frontend.listening", "frontend.loaded", "frontend.ended"}


def test_the_port_is_bound_before_anything_is_loaded(core: tuple[Path, str], tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    process = spawn(core[0], run_dir, tmp_path / "log")
    try:
        url = address(run_dir, process)
        port = int(url.rsplit(":", 1)[1])
        assert httpx.get(f"{url}/health").status_code == 200
        assert httpx.get(f"{url}/ready").status_code == 503
        other = spawn(core[0], tmp_path / "other", tmp_path / "other.log", port=port)
        assert other.wait(SOON_S) == 1
        assert "cannot listen" in (tmp_path / "other.log").read_text()
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(SOON_S) == 0
    finally:
        process.kill()
        process.wait()


def test_a_folder_that_is_no_core(tmp_path: Path) -> None:
    process = spawn(tmp_path / "nothing", tmp_path / "run", tmp_path / "log")
    assert process.wait(SOON_S) == 1
    assert "is not a core" in (tmp_path / "log").read_text()
    assert not (tmp_path / "run" / "frontend.json").exists()


def test_an_error_in_a_callback_ends_the_process(
    core: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = SchedulerLink._take

    def broken(self: SchedulerLink, message: FromScheduler) -> None:
        if threading.current_thread() is thread:  # the shared frontend runs in this process, too
            raise KeyError("a fault")
        take(self, message)

    scheduler = ScriptedScheduler(tmp_path / "run", core[1])
    codes: list[int] = []
    config = FrontendConfig(core=core[0], run_dir=tmp_path / "run", port=0)
    thread = threading.Thread(target=lambda: codes.append(run(config)))
    monkeypatch.setattr(SchedulerLink, "_take", broken)  # which the shared frontend may call from now on
    thread.start()
    thread.join(SOON_S)
    scheduler.close()
    assert codes == [1]
