"""The services of compose/cpu.yaml, run from what their images declare: alone, joined, killed, started again, stopped.

No engine: `container.py` says what stands in for one. The services are those that `docker compose up` would start, with
the same command lines, environment, user, mounts and namespaces, over the scripted model.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from compose import prepare
from tests.compose.compose_file import ROOT, load, seconds
from tests.compose.container import UID, Engine, possible
from tests.fixtures.harness import RECIPES, wait_until
from tests.fixtures.scripted.recipe import make_core

pytestmark = pytest.mark.skipif(not possible(), reason="needs root, and namespaces that it may make")

HEALTHY_S = 90.0
SERVICES = ("frontend", "scheduler", "worker")
_CHAT = """
import http.client, json, sys
connection = http.client.HTTPConnection("127.0.0.1", 8000, timeout=30)
body = {"model": "compose-model", "messages": [{"role": "user", "content": sys.argv[1]}]}
body |= {"max_tokens": 20, "temperature": 0}
connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
answer = connection.getresponse()
print(json.dumps([answer.status, json.loads(answer.read())]))
"""


_STREAM = """
import http.client, json, sys
connection = http.client.HTTPConnection("127.0.0.1", 8000, timeout=30)
body = {"messages": [{"role": "user", "content": "say:" + sys.argv[1]}], "temperature": 0, "stream": True}
connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
finish = None
for line in connection.getresponse():
    if line.startswith(b"data: {"):
        choice = (json.loads(line[6:]).get("choices") or [{}])[0]
        print(choice.get("delta", {}).get("content") or "", end="", flush=True)
        finish = choice.get("finish_reason") or finish
print(f"|{finish}", end="")
"""


def chat(engine: Engine, text: str) -> str:
    """One answer, asked for inside the frontend's container."""
    code, said = engine.execute("frontend", ["python", "-c", _CHAT, text])
    assert code == 0, said
    status, answer = json.loads(said)
    assert status == 200, answer
    content: str = answer["choices"][0]["message"]["content"]
    return content


def wait_healthy(engine: Engine, *names: str) -> None:
    """Asks as an engine does, until the checks pass. Raises `TimeoutError`, or `RuntimeError` for one that ended."""
    deadline = time.monotonic() + HEALTHY_S
    for name in names:
        while not (answer := engine.healthy(name))[0]:
            for container in engine.running.values():
                if container.name in names:
                    container.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} stays unhealthy: {answer[1]}\n{engine.running[name].log.read_text()}")
            time.sleep(0.3)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """All services of the CPU file, started against their order, and healthy."""
    folder = Path(tempfile.mkdtemp(prefix="flare-compose-"))
    extra = {"PYTHONPATH": "/extra", "FLARE_RECIPE_MODULES": RECIPES}
    environment = {"FLARE_CORE": "scripted", "FLARE_SERVED_MODEL_NAME": "compose-model"}
    file = load("cpu.yaml", environment=environment)
    try:
        shutil.copytree(ROOT / "tests" / "fixtures", folder / "extra" / "tests" / "fixtures")
        (folder / "extra" / "tests" / "__init__.py").touch()
        with Engine(file["services"], file["volumes"], folder, extra, {"/extra": folder / "extra"}) as running:
            made = make_core(folder / "made")
            shutil.copytree(made, running.volume("cores") / "scripted")
            running.start("holder")
            prepared = running.start("prepare")
            assert prepared.wait(60) == 0, prepared.log.read_text()
            assert "holds" in prepared.log.read_text()
            frontend = running.start("frontend")
            while "frontend.listening" not in frontend.log.read_text():
                frontend.check()
                time.sleep(0.1)
            assert running.healthy("frontend")[0] is False
            running.start("scheduler")
            running.start("worker")
            wait_healthy(running, *reversed(SERVICES))
            yield running
    finally:
        shutil.rmtree(folder)


def test_a_chat_is_answered(engine: Engine) -> None:
    assert chat(engine, "say:hello") == "hello"


def test_it_runs_as_the_file_says(engine: Engine) -> None:
    for name in SERVICES:
        leaf = engine.running[name].leaf
        assert set(leaf.uids()) == {UID}
        status = Path(f"/proc/{leaf.pid}/status").read_text()
        assert "CapEff:\t0000000000000000" in status
        assert "CapBnd:\t0000000000000000" in status
        assert "NoNewPrivs:\t1" in status
        code, said = engine.execute(name, ["python", "-c", "open('/opt/flare/x', 'w')"])
        assert code != 0
        assert "Read-only file system" in said
        assert engine.execute(name, ["python", "-c", "open('/tmp/x', 'w')"])[0] == 0
    for kind in ("pid", "ipc"):
        joined = {engine.running[name].namespace(kind) for name in ("holder", "scheduler", "worker")}
        assert len(joined) == 1
        assert engine.running["frontend"].namespace(kind) not in joined


@pytest.mark.parametrize(
    ("name", "absent"), [("frontend", "torch"), ("scheduler", "tokenizers"), ("worker", "starlette")]
)
def test_a_container_has_only_the_packages_of_its_image(engine: Engine, name: str, absent: str) -> None:
    code, said = engine.execute(name, ["python", "-c", f"import {absent}"])
    assert code != 0
    assert "ModuleNotFoundError" in said
    assert "pytest" not in said


def test_logs_are_json_on_stderr_and_files_on_the_volume(engine: Engine) -> None:
    for name in SERVICES:
        lines = [line for line in engine.running[name].log.read_text().splitlines() if line.strip()]
        assert lines
        assert all(json.loads(line)["service"] == name for line in lines), lines
        assert (engine.volume("logs") / f"{name}.log").stat().st_size > 0
    code, said = engine.execute("frontend", ["flare", "logs", "scheduler"])
    assert code == 0, said
    assert "scheduler" in said


@pytest.mark.parametrize("name", ["worker", "scheduler", "frontend"])
def test_a_killed_service_is_unhealthy_and_serves_again_once_restarted(engine: Engine, name: str) -> None:
    before = engine.running[name]
    assert before.leaf.pid
    before.signal(signal.SIGKILL)
    before.wait(10)
    if name != "frontend":
        wait_until(lambda: not engine.healthy("frontend")[0], 30, "the frontend says that it cannot serve")
        assert psutil.pid_exists(engine.running["holder"].leaf.pid)
    engine.start(name)
    wait_healthy(engine, name, "frontend")
    assert chat(engine, f"say:{name}") == name


def test_worker_and_scheduler_end_with_their_holder_and_come_back_with_it(engine: Engine) -> None:
    engine.running["holder"].signal(signal.SIGKILL)
    for name in ("scheduler", "worker"):
        engine.running[name].wait(10)
    engine.extra["T1_FORWARD_SECONDS"] = "0.05"  # for the test after this one
    for name in ("holder", "worker", "scheduler"):
        engine.start(name)
    wait_healthy(engine, "worker", "scheduler", "frontend")
    assert chat(engine, "say:again") == "again"


def test_all_told_to_stop_at_once_finish_the_stream_first_and_the_holder_ends_last(engine: Engine) -> None:
    # As when the engine itself is stopped. The holder is told first, and must not take the others with it.
    text = "".join(random.Random(5).choices("abcdefghij", k=120))
    command = ("nsenter", f"--net={engine.network}", sys.executable, "-c", _STREAM, text)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        first = client.stdout.read(1)
        _stop_all(engine)
        assert (first + client.stdout.read()).decode() == f"{text}|stop"


def _stop_all(engine: Engine) -> None:
    for name in ("holder", *SERVICES):
        engine.running[name].signal(signal.SIGTERM)
    for name in (*SERVICES, "holder"):
        container = engine.running[name]
        assert container.wait(seconds(engine.services[name]["stop_grace_period"])) == 0, container.log.read_text()
    assert "0 processes left" in engine.running["holder"].log.read_text()
    left = sorted(path.name for path in engine.volume("run").iterdir() if path.suffix != ".sock")
    assert not left


@pytest.mark.slow
def test_the_demo_core_is_prepared_and_served(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = Path(tempfile.mkdtemp(prefix="flare-compose-"))
    file = load("cpu.yaml", environment={"FLARE_CONCURRENCY": "2", "FLARE_SERVED_MODEL_NAME": "compose-model"})
    try:
        with Engine(file["services"], file["volumes"], folder) as running:
            running.start("holder")
            for _ in range(2):  # the second time there is nothing to do
                prepared = running.start("prepare")
                assert prepared.wait(300) == 0, prepared.log.read_text()
            assert prepared.log.read_text().count("only once") == 1
            assert (running.volume("cores") / prepare.DEMO).is_symlink()
            for name in ("worker", "scheduler", "frontend"):
                running.start(name)
            wait_healthy(running, "worker", "scheduler", "frontend")
            assert chat(running, "Say yes.")
    finally:
        shutil.rmtree(folder)
