"""A client of both generation endpoints for tests: whole answers and streams, joined and checked for their form."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson

PATH = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
_PROMPTS: dict[str, dict[str, Any]] = {PATH: {"messages": MESSAGES}, COMPLETIONS: {"prompt": "hi"}}


@dataclass
class Said:
    """What one choice said. `entries` are its log probabilities, `sources` its token sources."""

    text: str = ""
    finish: str | None = None
    entries: list[Any] = field(default_factory=list)
    sources: list[tuple[str, str]] = field(default_factory=list)

    def add(self, choice: dict[str, Any]) -> None:
        """Takes a choice of an answer or of a chunk; nothing may follow the finish reason."""
        assert self.finish is None, "an event after the finish reason"
        holder = choice.get("delta", choice.get("message", {}))
        text = choice["text"] if "text" in choice else holder.get("content")
        sources = [(token["text"], token["source"]) for token in choice.get("token_sources", ())]
        assert not sources or "".join(piece for piece, _ in sources) == text
        self.text += text or ""
        self.sources += sources
        self.finish = choice["finish_reason"]
        found = choice["logprobs"] or {}
        if "tokens" in found:
            names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
            self.entries += zip(*(found[name] for name in names), strict=True)
        else:
            self.entries += found.get("content", [])


@dataclass
class Answer:
    """What a client has after an answer, however it came."""

    choices: defaultdict[int, Said] = field(default_factory=lambda: defaultdict(Said))
    usage: dict[str, Any] | None = None
    metrics: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    done: bool = False
    comments: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Of the first choice, as are `finish`, `entries` and `sources`."""
        return self.choices[0].text

    @property
    def finish(self) -> str | None:
        return self.choices[0].finish

    @property
    def entries(self) -> list[Any]:
        return self.choices[0].entries

    @property
    def sources(self) -> list[tuple[str, str]]:
        return self.choices[0].sources

    @property
    def texts(self) -> list[str]:
        """Of all choices."""
        return [said.text for _, said in sorted(self.choices.items())]

    def add(self, event: dict[str, Any]) -> None:
        """Takes the JSON of an event or of a whole answer."""
        self.events.append(event)
        if "error" in event:
            self.error = event["error"]
            return
        self.usage = event.get("usage") or self.usage
        self.metrics = event.get("metrics") or self.metrics
        for choice in event["choices"]:
            self.choices[choice["index"]].add(choice)


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
            answer.add(orjson.loads(line[6:]))
        yield answer


@dataclass(frozen=True)
class Chat:
    """Posts requests to one endpoint; keyword arguments are fields of the body."""

    client: httpx.Client
    path: str = PATH

    def post(self, **fields: Any) -> httpx.Response:
        """The raw response."""
        return self.client.post(self.path, json={**_PROMPTS[self.path], **fields})

    def whole(self, **fields: Any) -> Answer:
        """An answer that is not streamed."""
        response = self.post(**fields)
        assert response.status_code == 200, response.text
        answer = Answer()
        answer.add(response.json())
        return answer

    @contextmanager
    def streaming(self, **fields: Any) -> Iterator[Iterator[Answer]]:
        """An open stream, as an iterator over the growing answer."""
        body = {**_PROMPTS[self.path], "stream": True, **fields}
        with self.client.stream("POST", self.path, json=body) as response:
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

    def both(self, **fields: Any) -> Answer:
        """The same request whole and streamed, which must agree."""
        whole, stream = self.whole(**fields), self.stream(**fields)
        assert stream.done
        assert stream.error is None
        for name in ("choices", "usage", "metrics"):
            assert getattr(stream, name) == getattr(whole, name), name
        return whole
