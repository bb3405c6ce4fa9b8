"""A conversation with a server over HTTP: sends what was said, yields the answer's text as it comes."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from shared.errors import ProcessError

TIMEOUT_S = 120.0
"""Of silence; a waiting server sends comments far more often."""
_CHOSEN = 300
"""Characters of an error that is not in the usual form."""


@dataclass(slots=True)
class Figures:
    """What an answer cost, as far as the server said so. Seconds from the first piece of text to the end."""

    tokens: int | None = None
    seconds: float = 0.0
    offered: int = 0
    accepted: int = 0

    def line(self) -> str:
        """For people; empty for an answer that was stopped, whose counts nobody told."""
        if self.tokens is None:
            return ""
        speed = f", {(self.tokens - 1) / self.seconds:.1f} tokens/s" if self.tokens > 1 and self.seconds > 0 else ""
        drafts = f", {self.accepted / self.offered:.0%} of {self.offered} drafts accepted" if self.offered else ""
        return f"{self.tokens} tokens{speed}{drafts}"


@dataclass(slots=True)
class Chat:
    """`fields` go with every request as they are; `history` are the turns so far.

    `broken` is whether the last turn is half an answer, which a fault ended.
    """

    url: str
    api_key: str = ""
    system: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, str]] = field(default_factory=list)
    figures: Figures = field(default_factory=Figures)
    broken: bool = False

    def reset(self) -> None:
        """Forgets what was said."""
        self.history.clear()

    def ask(self, text: str) -> Generator[str, None, None]:
        """The answer, a piece at a time. Raises `ProcessError`.

        Whoever stops reading ends the answer, in the server too. However it ends, what came until then stays in the
        conversation; if nothing came, then nothing was said.
        """
        self.figures, self.broken = Figures(), False
        said = {"role": "user", "content": text}
        system = [{"role": "system", "content": self.system}] if self.system else []
        body = {
            "messages": [*system, *self.history, said],
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.fields,
        }
        answer: list[str] = []
        try:
            for piece in self._pieces(body):
                answer.append(piece)
                yield piece
        except ProcessError:
            self.broken = bool(answer)
            raise
        finally:
            if answer:
                self.history += [said, {"role": "assistant", "content": "".join(answer)}]

    def _pieces(self, body: dict[str, Any]) -> Iterator[str]:
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        headers = {"Content-Type": "application/json"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        connection = kind(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
        try:
            connection.request("POST", f"{parts.path.rstrip('/')}/v1/chat/completions", json.dumps(body), headers)
            with connection.getresponse() as response:
                if response.status != 200:
                    raise ProcessError(_refusal(response.status, response.read()))
                yield from self._events(response)
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or error or type(error).__name__
            raise ProcessError(f"no answer from {self.url}: {reason}") from error
        finally:
            connection.close()

    def _events(self, response: http.client.HTTPResponse) -> Iterator[str]:
        begin, ended = 0.0, False
        for line in response:
            if not line.startswith(b"data: "):
                continue
            if line.startswith(b"data: [DONE]"):
                ended = True
                break
            event = json.loads(line[6:])
            if "error" in event:
                raise ProcessError(str(event["error"].get("message")))
            for choice in event["choices"]:
                if piece := choice["delta"].get("content"):
                    begin = begin or time.monotonic()
                    yield piece
            self._note(event, begin)
        if not ended:
            raise ProcessError("the answer broke off")

    def _note(self, event: dict[str, Any], begin: float) -> None:
        if event.get("usage"):
            self.figures.tokens = event["usage"]["completion_tokens"]
            self.figures.seconds = time.monotonic() - begin if begin else 0.0
        if drafts := (event.get("metrics") or {}).get("speculative_decoding"):
            self.figures.offered = drafts["num_draft_tokens"]
            self.figures.accepted = drafts["num_accepted_draft_tokens"]


def _refusal(status: int, body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered {status}: {body[:_CHOSEN].decode(errors='replace')}"
