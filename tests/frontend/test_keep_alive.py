"""Comments while a stream waits: often enough for a proxy, none once data flows, and clients ignore them (B26)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from services.frontend.config import FrontendConfig
from shared.errors import ProcessError
from tests.frontend.client import MESSAGES, PATH, Chat
from tests.frontend.conftest import Deployment, deploy
from tests.frontend.scripted_scheduler import Script

INTERVAL_S = 0.5
WAIT_S = 2.5
READ_TIMEOUT_S = 1.5


@pytest.fixture(scope="module")
def patient(core: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A frontend with frequent comments and a client with a read time-out below the wait."""
    with deploy(core, tmp_path_factory.mktemp("run"), keep_alive=INTERVAL_S) as deployed:
        deployed.scheduler.script = Script(tokens=tuple(b"hello"))
        with httpx.Client(base_url=deployed.chat.client.base_url, timeout=READ_TIMEOUT_S) as client:
            yield Deployment(deployed.scheduler, Chat(client), deployed.run_dir)


def test_a_wait_beyond_the_clients_read_timeout(patient: Deployment) -> None:
    patient.scheduler.tell(ready=False)
    started, comments = time.monotonic(), []
    try:
        with patient.chat.client.stream(
            "POST", PATH, json={"messages": MESSAGES, "stream": True, "max_tokens": 5}
        ) as response:
            assert response.status_code == 200
            assert time.monotonic() - started < READ_TIMEOUT_S, "the headers came late"
            lines = []
            for line in response.iter_lines():
                lines.append(line)
                if line.startswith(":") and patient.scheduler.ready is False:
                    comments.append(time.monotonic())
                    if comments[-1] - started > WAIT_S:
                        patient.scheduler.tell(ready=True)
    finally:
        patient.scheduler.tell(ready=True)
    assert len(comments) >= 2
    text = [line for line in lines if '"content":"h' in line]
    assert text, lines
    assert lines[-2] == "data: [DONE]"
    assert not any(line.startswith(":") for line in lines[lines.index(text[0]) :]), "a comment while data flows"


def test_the_openai_client_ignores_the_comments(patient: Deployment) -> None:
    """Its read time-out is shorter than the wait, too."""
    patient.scheduler.tell(ready=False)
    waker = threading.Timer(WAIT_S, patient.scheduler.tell, (True,))
    waker.start()
    client = openai.OpenAI(
        base_url=f"{patient.chat.client.base_url}/v1", api_key="none", timeout=READ_TIMEOUT_S, max_retries=0,
        _strict_response_validation=True,
    )  # fmt: skip
    try:
        with client.chat.completions.create(
            model="small", messages=[{"role": "user", "content": "hi"}], stream=True, max_tokens=5
        ) as chunks:
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    finally:
        waker.join()
        client.close()
    assert text == "hello"


def test_an_early_error_keeps_its_status(patient: Deployment) -> None:
    response = patient.chat.client.post(PATH, json={"messages": MESSAGES, "stream": True, "temperature": 9})
    assert response.status_code == 400


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_an_interval_that_makes_no_sense(value: float) -> None:
    with pytest.raises(ProcessError, match="keep_alive"):
        FrontendConfig(core=Path("/"), run_dir=Path("/"), keep_alive=value)
