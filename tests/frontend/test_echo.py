"""What a client sent comes back in no error, and none of it can forge a line of the log (B55, B66)."""

from __future__ import annotations

import json
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from services.frontend.api.surface import OPERATIONS
from tests.frontend.client import PATH
from tests.frontend.conftest import Deployment, deploy
from tests.frontend.test_connection import chat
from tests.frontend.test_limits import connect, read_all
from tests.frontend.test_refusals import SECRET

CONTROLS = '\x00\x1b[31m\r\n\x85\u2028\x7f{} "event":"forged" level=error'
KEY = "k" * 64 + SECRET
"""An unknown field is told back by name, so that its sender finds it; so much of it."""
BODIES = {operation.path: operation.body for operation in OPERATIONS if operation.body is not None}
FIELDS = [(path, name) for path, body in BODIES.items() for name in body.__struct_fields__]


@pytest.fixture(scope="module")
def open_door(core: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A frontend for whatever may be sent; nothing of it is accepted."""
    with deploy(core, tmp_path_factory.mktemp("run")) as deployed:
        yield deployed


def send(served: Deployment, path: str, body: Any) -> bytes:
    """Posts and checks what every refusal must be."""
    response = served.chat.client.post(path, content=orjson.dumps(body), headers={"content-type": "application/json"})
    assert 400 <= response.status_code < 500, response.text
    assert len(response.content) < 8192
    assert SECRET not in response.text
    error = json.loads(response.content)["error"]
    shown = (error["message"] or "") + (error["param"] or "")
    assert shown.isprintable(), repr(shown)
    return response.content


@pytest.mark.parametrize(("path", "name"), FIELDS)
def test_no_field_comes_back(open_door: Deployment, path: str, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Each field with content of a wrong type, in which the content is a value, a key and a part of a list."""
    good: dict[str, Any] = (
        {"messages": [{"role": "user", "content": "x"}]} if "messages" in BODIES[path].__struct_fields__ else {}
    )
    good |= {"prompt": "x"} if path == "/v1/completions" else {"tokens": [1]} if path == "/detokenize" else {}
    for wrong in ({KEY: {KEY: SECRET}}, [[{KEY: SECRET}]], [SECRET, {KEY: 5}, 1.5]):
        send(open_door, path, {**good, name: wrong})
    assert SECRET not in "".join(capfd.readouterr())


def test_many_errors_make_a_small_answer(open_door: Deployment) -> None:
    parts = [{"type": SECRET, KEY: SECRET, "text": 5}] * 3000
    assert len(send(open_door, PATH, {"messages": [{"role": "user", "content": parts}] * 3})) < 500


@pytest.mark.parametrize("depth", [1000, 100_000])
@pytest.mark.parametrize("path", BODIES)
def test_deep_nesting_anywhere(open_door: Deployment, path: str, depth: int) -> None:
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        for before in (b"", *(b'{"%s":' % name.encode() for name in (*BODIES[path].__struct_fields__, "tools"))):
            response = open_door.chat.client.post(path, content=before + opening * depth + b"1" + closing * depth)
            assert response.status_code == 400
            assert len(response.content) < 500


def log_lines(text: str) -> list[str]:
    """Lines as a person or a machine would split them."""
    return text.splitlines()


def test_no_line_of_the_log_is_forged(open_door: Deployment, capfd: pytest.CaptureFixture[str]) -> None:
    """Control characters in everything of a client's that might be logged or told back."""
    capfd.readouterr()
    for body in (
        {CONTROLS: 1},
        {"messages": [{"role": CONTROLS, "content": "x"}]},
        {"messages": [{"role": "user", "content": "x", CONTROLS: 1}]},
        {"messages": [{"role": "user", "content": "x"}], "model": CONTROLS},
        {"messages": [{"role": "user", "content": "x"}], "logit_bias": {CONTROLS: 1}},
        {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {CONTROLS: 1}},
        {"messages": [{"role": "user", "content": [{"type": CONTROLS, "text": "x"}]}]},
    ):
        send(open_door, PATH, body)
    client = open_door.chat.client
    assert client.get("/%1b%5b31m%0d%0aforged").status_code == 404
    assert client.get("/v1/models/%0d%0aforged:%20x").status_code == 404
    written = "".join(capfd.readouterr())
    assert written, "nothing was logged: the test sees nothing"
    allowed = set(string.printable) - set("\r\x0b\x0c")
    for line in log_lines(written):
        assert "forged" not in line
        assert set(line) <= allowed | {"\x1b"}  # the terminal form's own colours
    assert "\x1b[31m" not in written


@pytest.mark.parametrize("name", [b"x-request-id", b"authorization", b"content-type", b"host", b"origin"])
def test_headers_forge_nothing(open_door: Deployment, name: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    """What HTTP lets through of a header's bytes."""
    capfd.readouterr()
    value = b"\x80\x85\xa0\xff\tforged; {} \\r\\n"
    with connect(open_door) as connection:
        connection.sendall(chat(b"{}", name + b": " + value, b"connection: close"))
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 4")
    assert b"forged" not in answer
    assert "forged" not in "".join(capfd.readouterr())
