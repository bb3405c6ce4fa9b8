"""The frontend's log holds nothing that a client wrote, also when a template fails over it, unless it is asked to."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import structlog

from services.frontend.api.field_paths import loggable
from services.frontend.api.surface import OPERATIONS
from shared import logs
from shared.logs import LogConfig
from tests.frontend.conftest import deploy
from tests.frontend.scripted_scheduler import Script

SECRET = "Zanzibar"
TEMPLATES = {
    "refuses": "{{ raise_exception('not this: ' + messages[0]['content']) }}",
    "fails": "{{ {}[messages[0]['content']].missing }}",
    "is given the wrong kind": "{{ messages[0]['content'] + 1 }}",
}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    """The frontend's log file, everything in it."""
    logs.configure("frontend", LogConfig(log_dir=tmp_path), withhold=True)
    yield tmp_path / "frontend.log"
    structlog.reset_defaults()


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_a_template_that_fails_over_content_tells_the_client_and_not_the_log(
    core: tuple[Path, str], log: Path, tmp_path: Path, template: str, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "core"
    shutil.copytree(core[0], folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": template}))
    (tmp_path / "run").mkdir()
    with deploy((folder, core[1]), tmp_path / "run") as deployed:
        answer = deployed.chat.post(messages=[{"role": "user", "content": SECRET}])
    assert answer.status_code == 400
    logs.flush()
    assert "request.refused" in log.read_text()
    assert SECRET not in log.read_text()
    assert SECRET not in capfd.readouterr().err


@pytest.mark.parametrize("asked", [False, True])
def test_prompts_and_answers_are_logged_only_if_asked_for(
    core: tuple[Path, str], log: Path, tmp_path: Path, asked: bool
) -> None:
    (tmp_path / "run").mkdir()
    with deploy(core, tmp_path / "run", log_content=asked) as deployed:
        deployed.scheduler.script = Script(tokens=tuple(b"hello there"))
        answer = deployed.chat.post(messages=[{"role": "user", "content": SECRET}], n=2, max_tokens=11)
    assert answer.status_code == 200
    logs.flush()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    texts = [(line["event"], line["text"]) for line in lines if "text" in line]
    if not asked:
        assert texts == []
        assert SECRET not in log.read_text()
        return
    assert [name for name, _ in texts] == ["request.prompt", "request.output", "request.output"]
    assert SECRET in texts[0][1]
    assert texts[1][1] == answer.json()["choices"][0]["message"]["content"] == "hello there"


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        (None, ""),
        ("messages[0].content", "messages[0].content"),
        ("stream_options.include_usage", "stream_options.include_usage"),
        (SECRET, "?"),
        (f"messages[2].{SECRET}", "messages[2].?"),
        ("messages[0].content[1].text", "messages[0].content[1].text"),
        ("prompt[3]", "prompt[3]"),
        ("tokens[7]", "tokens[7]"),
        ("return_token_strs", "return_token_strs"),
        ("mm_processor_kwargs", "mm_processor_kwargs"),
        ("a b\nc", "?"),
        ("[0]", "?"),
    ],
)
def test_only_names_of_ours_are_shown_of_a_path(path: str | None, shown: str) -> None:
    assert loggable(path) == shown


def test_every_field_of_every_body_may_be_shown() -> None:
    bodies = [operation.body for operation in OPERATIONS if operation.body]
    assert len(bodies) >= 4
    for body in bodies:
        for field in msgspec.structs.fields(body):
            assert loggable(field.encode_name) == field.encode_name
