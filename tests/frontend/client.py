"""A chat client for tests: whole answers and streams, joined and checked for their form."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson

PATH = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


@dataclass
class Answer:
    """What a client has after an answer, however it came."""

    text: str = ""
    finish: str | None = None
    usage: dict[str, Any] | None = None
    metrics: dict[str, Any] | None = None
    entries: list[dict[str, Any]] = field(default_factory=list)
    error: dict[str, Any] | None = None
    done: bool = False
    comments: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)


def _add_event(answer: Answer, event: dict[str, Any]) -> None:
    answer.events.append(event)
    if "error" in event:
        answer.error = event["error"]
        return
    answer.usage = event.get("usage") or answer.usage
    answer.metrics = event.get("metrics") or answer.metrics
    for choice in event["choices"]:
        assert answer.finish is None, "an event after the finish reason"
        answer.text += choice["delta"].get("content") or ""
        answer.finish = choice["finish_reason"]
        answer.entries += (choice["logprobs"] or {"content": []})["content"]


def read_events(lines: Iterator[str], answer: Answer) -> Iterator[Answer]:
    """Adds each event to the answer as it comes; nothing may follow an error or [DONE]."""
    for line in lines:
        if not line:
            continue
        assert not answer.done
        assert answer.error is None
        if line.startswith(":"):
            answer.comments += 1
            continue
        assert line.startswith("data: ")
        if line == "data: [DONE]":
            answer.done = True
        else:
            _add_event(answer, orjson.loads(line[6:]))
        yield answer


@dataclass(frozen=True)
class Chat:
    """Posts chat requests; keyword arguments are fields of the body."""

    client: httpx.Client

    def post(self, **fields: Any) -> httpx.Response:
        """The raw response."""
        return self.client.post(PATH, json={"messages": MESSAGES, **fields})

    def whole(self, **fields: Any) -> Answer:
        """An answer that is not streamed."""
        response = self.post(**fields)
        assert response.status_code == 200, response.text
        body = response.json()
        choice = body["choices"][0]
        return Answer(
            text=choice["message"]["content"],
            finish=choice["finish_reason"],
            usage=body["usage"],
            metrics=body.get("metrics"),
            entries=(choice["logprobs"] or {"content": []})["content"],
            events=[body],
        )

    @contextmanager
    def streaming(self, **fields: Any) -> Iterator[Iterator[Answer]]:
        """An open stream, as an iterator over the growing answer."""
        body = {"messages": MESSAGES, "stream": True, **fields}
        with self.client.stream("POST", PATH, json=body) as response:
            if response.status_code != 200:
                response.read()
            assert response.status_code == 200, response.text
            assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
            yield read_events(response.iter_lines(), Answer())

    def stream(self, **fields: Any) -> Answer:
        """A stream read to its end, with usage."""
        with self.streaming(stream_options={"include_usage": True}, **fields) as events:
            *_, answer = events
        return answer
