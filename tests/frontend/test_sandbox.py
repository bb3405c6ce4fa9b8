"""What a template may not do: huge values, endless work, endless text. Each costs one request."""

from __future__ import annotations

import time

import pytest

from services.frontend import sandbox
from services.frontend.template import ChatTemplate
from shared.errors import InvalidRequest

TURNS = [{"role": "user", "content": "zebra " * 100}]


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'y' * 300000000 }}",
        "{{ 300000000 * 'y' }}",
        "{{ [0] * 300000000 }}",
        "{{ 'y' * width }}",
        "{{ 10 ** (10 ** 9) }}",
        "{% for i in range(99999) %}{{ messages[0].content }}{% endfor %}",
        "{% for i in range(10 ** 7) %}{% endfor %}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    ],
)
def test_a_bound_on_what_a_template_makes(source: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ChatTemplate(source, {}).render(TURNS, options={"width": 1 << 50})
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% set x = messages[0] %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(999) %}{% endfor %}{% endfor %}",
    ],
)
def test_a_bound_on_how_long_a_template_runs(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.setattr(sandbox, "RENDER_SECONDS", 0.1)
    started = time.monotonic()
    with pytest.raises(InvalidRequest, match="too long"):
        ChatTemplate(source, {}).render(TURNS)
    assert time.monotonic() - started < 30, "without the bound it would be minutes"


def test_products_of_ordinary_size_are_made() -> None:
    source = "{{ 'ab' * 3 }}{{ 2 * 'c' }}{{ 2 * 3.5 }}{{ 2 ** 10 }}{{ 2 ** -1 }}{{ 1.5 ** 2 }}{{ 'x' * -1 }}"
    assert ChatTemplate(source, {}).render(TURNS) == "abababcc7.010240.52.25"


def test_the_time_of_one_rendering_is_not_the_next_ones() -> None:
    template = ChatTemplate("{{ messages[0].content }}", {})
    for _ in range(3):
        assert template.render(TURNS) == TURNS[0]["content"]
    assert not hasattr(sandbox._running, "deadline")
