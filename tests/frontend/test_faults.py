"""Clients that leave, schedulers that die, signals: nothing leaks, all are told (architecture.md, section 7)."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import orjson
import psutil
import pytest

from services.frontend.config import FrontendConfig
from services.frontend.link import SchedulerLink
from services.frontend.service import run
from shared.messages.common import new_instance
from shared.messages.frontend import Delta, FromScheduler, Tokens
from shared.messages.scheduler import Ack, Cancel, Submit
from tests.frontend.client import MESSAGES, PATH, Answer, Chat
from tests.frontend.conftest import Deployment, deploy, wait_ready
from tests.frontend.scripted_scheduler import Script, ScriptedScheduler
from tests.frontend.small_core import END

SLOW = Script(tuple(b"hello" * 60), (1,), pause_s=0.02)
STUCK = Script(tuple(b"hello"), (2,), hang_after=1)
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
        return self.process.wait(8)


def spawn(core: Path, run_dir: Path, log: Path, *, port: int = 0, drain: float = 5.0) -> subprocess.Popen[bytes]:
    with log.open("ab") as target:
        return subprocess.Popen(
            [sys.executable, "-c", MAIN, str(core), str(run_dir), str(port), str(drain)], stderr=target
        )


def address(run_dir: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + 8
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


def post_raw(served: Deployment, **fields: object) -> socket.socket:
    url = served.chat.client.base_url
    connection = socket.create_connection((url.host, url.port or 80), timeout=5)
    body = orjson.dumps({"messages": MESSAGES, **fields})
    head = b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (PATH.encode(), len(body))
    connection.sendall(head + body)
    return connection


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("script", [SLOW, STUCK, Script(tuple(b"x"), hang_after=0)])
def test_a_client_that_leaves_is_cancelled(served: Deployment, reset: bool, stream: bool, script: Script) -> None:
    served.scheduler.script = script
    connection = post_raw(served, stream=stream)
    [submit] = served.scheduler.wait_for(Submit)
    time.sleep(0.05)
    if reset:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    left = time.monotonic()
    connection.close()
    [cancel] = served.scheduler.wait_for(Cancel)
    assert cancel.request == submit.request
    assert time.monotonic() - left < 0.5


def test_many_clients_that_leave(served: Deployment) -> None:
    served.scheduler.script = SLOW
    connections = [post_raw(served, stream=bool(i % 2)) for i in range(60)]
    served.scheduler.wait_for(Submit, 60)
    for connection in connections:
        connection.close()
    served.scheduler.wait_for(Cancel, 60)
    served.scheduler.script = Script((*b"ok", END))
    assert served.chat.whole().text == "ok"


def test_other_instances_are_ignored(served: Deployment) -> None:
    served.scheduler.script = SLOW
    with served.chat.streaming(max_tokens=20) as events:
        answer = next(events)
        [submit] = served.scheduler.of(Submit)
        stale = Delta(request=submit.request, epoch=1, start=0, tokens=tuple(b"STALE"), finish="stop")
        served.scheduler.send_raw(Tokens(instance=new_instance(), sequence=1, deltas=(stale,)))
        for _ in events:
            pass
    assert answer.text == ("hello" * 4)
    assert answer.finish == "length"


def test_a_breach_costs_one_request(served: Deployment) -> None:
    served.scheduler.script = STUCK
    with served.chat.streaming() as events:
        answer = next(events)
        [submit] = served.scheduler.of(Submit)
        gap = Delta(request=submit.request, epoch=1, start=100, tokens=(65,))
        served.scheduler.send_raw(Tokens(instance=served.scheduler.instance, sequence=1, deltas=(gap,)))
        for _ in events:
            pass
    assert answer.error is not None
    assert answer.error["code"] == "round_failed"
    assert served.scheduler.wait_for(Cancel)[0].request == submit.request


def test_scheduler_death_and_return(core: tuple[Path, str], tmp_path: Path) -> None:
    with deployed(core, tmp_path) as child:
        child.scheduler.script = STUCK
        whole: list[httpx.Response] = []
        waiting = threading.Thread(target=lambda: whole.append(child.chat.post()))
        waiting.start()
        with child.chat.streaming() as events:
            answer = next(events)
            child.scheduler.wait_for(Ack, 2)
            died = time.monotonic()
            child.scheduler.close()
            for _ in events:
                pass
        assert time.monotonic() - died < 1
        assert answer.text == "he"
        assert answer.error is not None
        assert answer.error["code"] == "state_lost"
        assert not answer.done
        waiting.join(3)
        assert (whole[0].status_code, whole[0].json()["error"]["code"]) == (503, "state_lost")
        assert child.chat.client.get("/ready").status_code == 503
        assert child.chat.client.get("/health").status_code == 200
        assert child.chat.post().status_code == 503
        child.scheduler = ScriptedScheduler(child.run_dir, child.digest)
        try:
            wait_ready(child.chat.client, 3)
            child.scheduler.script = Script((*b"back", END))
            assert child.chat.whole().text == "back"
        finally:
            child.scheduler.close()


def test_who_waits_is_sent_to_the_next_scheduler_but_only_once(core: tuple[Path, str], tmp_path: Path) -> None:
    waits = Script((), hang_after=0)
    with deployed(core, tmp_path) as child, ThreadPoolExecutor(3) as pool:
        child.scheduler.script = waits
        served = pool.submit(child.chat.whole)
        [first] = child.scheduler.wait_for(Submit)
        child.scheduler.close()
        child.scheduler = ScriptedScheduler(child.run_dir, child.digest, Script((*b"served", END)))
        assert served.result(5).text == "served"
        [second] = child.scheduler.of(Submit)
        assert (second.request, second.prompt, second.sampling) == (first.request, first.prompt, first.sampling)
        child.scheduler.script = waits
        poison = pool.submit(child.chat.post)
        child.scheduler.wait_for(Submit, 2)
        for _ in range(2):
            child.scheduler.close()
            child.scheduler = ScriptedScheduler(child.run_dir, child.digest, waits)
            wait_ready(child.chat.client, 3)
        assert poison.result(5).json()["error"]["code"] == "state_lost"
        child.scheduler.script = Script((*b"on", END))
        assert child.chat.whole().text == "on"


def test_who_waits_may_leave_while_there_is_no_scheduler(core: tuple[Path, str], tmp_path: Path) -> None:
    with deployed(core, tmp_path) as child:
        child.scheduler.script = Script((), hang_after=0)
        with ThreadPoolExecutor(1) as pool:
            leaving = pool.submit(child.chat.client.post, PATH, json={"messages": MESSAGES}, timeout=0.6)
            child.scheduler.wait_for(Submit)
            child.scheduler.close()
            assert isinstance(leaving.exception(5), httpx.ReadTimeout)
        child.scheduler = ScriptedScheduler(child.run_dir, child.digest, Script((*b"on", END)))
        wait_ready(child.chat.client, 3)
        assert child.chat.whole().text == "on"
        assert len(child.scheduler.of(Submit)) == 1, "nobody waits for the other answer any more"


def test_a_silent_scheduler_is_given_up_and_welcomed_again(core: tuple[Path, str], tmp_path: Path) -> None:
    with deploy(core, tmp_path, scheduler_timeout=1.0) as served:
        served.scheduler.script = STUCK
        with served.chat.streaming() as events:
            answer = next(events)
            served.scheduler.silent = True
            began = time.monotonic()
            for _ in events:
                pass
        assert answer.error is not None
        assert answer.error["code"] == "state_lost"
        assert time.monotonic() - began < 3
        served.scheduler.silent = False
        wait_ready(served.chat.client, 3)
        [cancel] = served.scheduler.wait_for(Cancel)
        assert cancel.request == served.scheduler.of(Submit)[0].request
        served.scheduler.script = Script((*b"on", END))
        assert served.chat.whole().text == "on"


def test_readiness_follows_scheduler_and_worker(core: tuple[Path, str], tmp_path: Path) -> None:
    with deployed(core, tmp_path) as child:
        child.scheduler.tell(ready=False)
        time.sleep(0.1)
        response = child.chat.client.get("/ready")
        assert (response.status_code, response.json()["reason"]) == (503, "no worker")
        child.scheduler.script = Script((*b"queued", END))
        timer = threading.Timer(0.3, child.scheduler.tell, [True])
        timer.start()
        assert child.chat.whole().text == "queued"
        child.scheduler.silent = True
        time.sleep(1.6)
        response = child.chat.client.get("/ready")
        assert response.status_code == 503
        assert "silent" in response.json()["reason"]


def test_a_scheduler_with_another_core(core: tuple[Path, str], tmp_path: Path) -> None:
    with deployed(core, tmp_path) as child:
        child.scheduler.close()
        child.scheduler = ScriptedScheduler(child.run_dir, "another digest")
        deadline = time.monotonic() + 3
        while "different cores" not in (text := child.chat.client.get("/ready").text):
            assert time.monotonic() < deadline, text
            time.sleep(0.02)
        assert child.chat.post().status_code == 503
        child.scheduler.close()


def test_drain_lets_streams_finish(core: tuple[Path, str], tmp_path: Path) -> None:
    with deployed(core, tmp_path) as child:
        child.scheduler.script = Script((*b"hello" * 10, END), (1,), pause_s=0.02)
        with child.chat.streaming() as events:
            answer = next(events)
            child.process.send_signal(signal.SIGTERM)
            time.sleep(0.1)
            response = httpx.get(f"{child.chat.client.base_url}/ready")
            assert (response.status_code, response.json()["reason"]) == (503, "the server is shutting down")
            refused = httpx.post(f"{child.chat.client.base_url}/v1/chat/completions", json={"messages": MESSAGES})
            assert refused.status_code == 503
            for _ in events:
                pass
        assert (answer.text, answer.done, answer.error) == ("hello" * 10, True, None)
        assert child.process.wait(3) == 0
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
                time.sleep(0.2)
                child.process.send_signal(signal.SIGTERM)
            for _ in events:
                pass
        assert answer.error is not None
        assert answer.error["code"] == "service_unavailable"
        assert child.process.wait(4) == 0
        assert time.monotonic() - told < 3
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
        assert other.wait(8) == 1
        assert "cannot listen" in (tmp_path / "other.log").read_text()
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(3) == 0
    finally:
        process.kill()
        process.wait()


def test_a_folder_that_is_no_core(tmp_path: Path) -> None:
    process = spawn(tmp_path / "nothing", tmp_path / "run", tmp_path / "log")
    assert process.wait(8) == 1
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

    monkeypatch.setattr(SchedulerLink, "_take", broken)
    scheduler = ScriptedScheduler(tmp_path / "run", core[1])
    codes: list[int] = []
    config = FrontendConfig(core=core[0], run_dir=tmp_path / "run", port=0)
    thread = threading.Thread(target=lambda: codes.append(run(config)))
    thread.start()
    thread.join(5)
    scheduler.close()
    assert codes == [1]
