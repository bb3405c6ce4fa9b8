"""Copies from prompt and history beside MTP proposals in a running server over the small core; what ends a request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared import metrics
from tests.fixtures.harness import Server, wait_until
from tests.system.scrapes import Scrape, scrape

SOURCES = ("learned", "history", "prompt")
QUESTIONS = ("hgfedcba", "what next?", "b")


@pytest.fixture(scope="module")
def server(core: Path) -> Iterator[Server]:
    """Drafts at full width: what an adaptive width chooses hangs on measured times."""
    with Server(core, ("--no-mtp-adaptive-verification", "--history-drafts", "--prompt-drafts")) as running:
        running.wait_ready()
        yield running


@pytest.fixture(scope="module")
def answers(server: Server) -> list[dict[str, Any]]:
    """Each question twice, greedy: the second time its answer is history."""
    return [server.chat(question, max_tokens=80) for question in QUESTIONS for _ in range(2)]


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


def by_source(answer: dict[str, Any]) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for source, counts in answer["metrics"]["speculative_decoding"]["by_source"].items():
        found["offered", source] += counts["num_draft_tokens"]
        found["accepted", source] += counts["num_accepted_draft_tokens"]
    return found


def settled(server: Server) -> Scrape:
    """What the scheduler has counted once every answer is acknowledged, which the client does not wait for."""

    def over() -> bool:
        found.append(scrape(server, "scheduler"))
        return found[-1].total(metrics.UNACKNOWLEDGED) == found[-1].total(metrics.REQUESTS_RUNNING) == 0

    found: list[Scrape] = []
    wait_until(over, 20, "everything is acknowledged")
    return found[-1]


def test_every_source_is_offered_and_accepted_beside_the_others(answers: list[dict[str, Any]]) -> None:
    """ "augments Qwen's learned MTP proposals with continuations from shared decoded history"."""
    total = sum((by_source(answer) for answer in answers), Counter[tuple[str, str]]())
    for source in SOURCES:
        assert 0 < total["accepted", source] <= total["offered", source], total
    for first, second in zip(answers[::2], answers[1::2], strict=True):
        assert text_of(first) == text_of(second)
        assert by_source(second)["accepted", "history"] > 0


def test_what_answers_tell_by_source_is_what_the_scheduler_counts(
    server: Server, answers: list[dict[str, Any]]
) -> None:
    """ "condition acceptance on draft depth, proposal source": sums over answers, requests and metrics agree."""
    before = settled(server)
    more = [server.chat(question, max_tokens=40) for question in QUESTIONS]
    told = sum((by_source(answer) for answer in more), Counter[tuple[str, str]]())
    drafts = [answer["metrics"]["speculative_decoding"] for answer in more]
    assert sum(found["num_draft_tokens"] for found in drafts) == sum(told["offered", name] for name in SOURCES)
    assert sum(found["num_accepted_draft_tokens"] for found in drafts) == sum(told["accepted", s] for s in SOURCES)
    after = settled(server)
    for kind, name in (("offered", metrics.OFFERED_BY_SOURCE), ("accepted", metrics.ACCEPTED_BY_SOURCE)):
        for source in SOURCES:
            counted = after.total(name, source=source) - before.total(name, source=source)
            assert counted == told[kind, source], (kind, source)


def test_a_stop_string_ends_the_text_inside_accepted_drafts(server: Server, answers: list[dict[str, Any]]) -> None:
    """ "EOS, stop and budget clipping": text, usage and accepted drafts all end at the same token."""
    whole = text_of(answers[0])
    stop = whole[20:24]
    cut = server.chat(QUESTIONS[0], max_tokens=80, stop=[stop])
    assert text_of(cut) == whole[: whole.index(stop)]
    assert cut["choices"][0]["finish_reason"] == "stop"
    assert cut["usage"]["completion_tokens"] == whole.index(stop) + len(stop)
    spec = cut["metrics"]["speculative_decoding"]
    assert spec["num_accepted_draft_tokens"] < cut["usage"]["completion_tokens"]


def test_a_cancelled_request_leaves_the_next_one_alone(server: Server, answers: list[dict[str, Any]]) -> None:
    """ "cancellation", with drafts of every source in flight: slots come back, and the next answer is the same."""
    for _ in range(3):
        with server.stream(QUESTIONS[1], max_tokens=900) as events:
            next(event for event in events if event.text)
    wait_until(lambda: scrape(server, "scheduler").total(metrics.REQUESTS_RUNNING) == 0, 20, "nothing runs any more")
    assert text_of(server.chat(QUESTIONS[1], max_tokens=80)) == text_of(answers[2])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}),
        ("guided_json", {"type": "object"}),
        ("guided_regex", "[a-h]+"),
        ("tools", [{"type": "function", "function": {"name": "a", "parameters": {}}}]),
    ],
)
def test_a_grammar_is_refused_by_its_name(server: Server, name: str, value: object) -> None:
    """ "grammar barriers" wait for the grammar issue; until then nobody's constraint is dropped in silence."""
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4, name: value}
    with server.client() as client:
        answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert name in answer.json()["error"]["message"]
