"""Chat templates in their sandbox: Hugging Face's conventions, and errors that cost one request."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.frontend.template import ChatTemplate, read_template
from shared.errors import InvalidRequest, ProcessError

TURNS = [{"role": "user", "content": "<b>é"}]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% if true %}\n  x\n{% endif %}\n", "  x\n"),
        ("{{ messages[0].content | tojson }}", '"<b>é"'),
        ("{% for m in [1, 2, 3] %}{% if m == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}", "1"),
        ("{{ bos_token }}{{ add_generation_prompt }}{{ tools is none }}", "<s>TrueTrue"),
        ("{{ strftime_now('%Y') | length }}", "4"),
    ],
)
def test_conventions(source: str, expected: str) -> None:
    assert ChatTemplate(source, {"bos_token": "<s>"}).render(TURNS) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no') }}",
        "{{ messages[5].content }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ 1 / 0 }}",
        "{{ messages + 1 }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
    ],
)
def test_errors_and_escapes_cost_the_request(source: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ChatTemplate(source, {}).render(TURNS)
    assert caught.value.param == "messages"


def test_a_template_that_does_not_compile_stops_the_process() -> None:
    with pytest.raises(ProcessError):
        ChatTemplate("{% if %}", {})


def test_where_templates_come_from(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "named{{ eos_token }}"}, {"name": "tools", "template": "no"}]
    settings = {"chat_template": named, "eos_token": {"content": "</s>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert read_template(tmp_path).render(TURNS) == "named</s>"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert read_template(tmp_path).render(TURNS) == "file"
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ProcessError, match="no chat template"):
        read_template(tmp_path)


SECRET = "my password is hunter2, do not tell"


@pytest.mark.parametrize(
    ("quoted", "told"),
    [
        ("'cannot take: ' ~ content", "cannot take: ..."),
        ("'cannot take: ' ~ content[:20] ~ ' here'", "cannot take: ... here"),
        ("'cannot take: ' ~ content.split()[-4]", "cannot take: ..."),
        ("'cannot take: ' ~ content | upper", "cannot take: ..."),
        ("'cannot take %s here' % content[12:22]", "cannot take ... here"),
        ("'cannot take {} here'.format(content)", "cannot take ... here"),
        ("content", "..."),
        ("'Roles must alternate'", "Roles must alternate"),
    ],
)
def test_an_error_tells_the_authors_words_and_none_of_the_clients(quoted: str, told: str) -> None:
    source = "{% set content = messages[0].content %}{{ raise_exception(" + quoted + ") }}"
    with pytest.raises(InvalidRequest) as caught:
        ChatTemplate(source, {}).render([{"role": "user", "content": SECRET}])
    assert str(caught.value) == f"the chat template refuses these messages: {told}"


@pytest.mark.parametrize("looked_up", ["messages[content]", "{'a': 1}[content].b", "(messages | groupby(content))"])
def test_an_error_of_the_language_does_not_quote_either(looked_up: str) -> None:
    source = "{% set content = messages[0].content %}{{ " + looked_up + ".more.and_more }}"
    with pytest.raises(InvalidRequest) as caught:
        ChatTemplate(source, {}).render([{"role": "user", "content": SECRET}])
    assert not any(word in str(caught.value) for word in ("hunter2", "password", "HUNTER2"))
