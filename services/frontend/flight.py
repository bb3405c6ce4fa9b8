"""One request in flight: joins the scheduler link, which delivers, with the HTTP task, which waits. Event loop only.

Deltas are decoded when they come, whether or not the client reads, so acknowledgements never wait for a slow client.
What it has not read is kept as one pending chunk, which its output budget bounds.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from services.frontend.generation import Detail, Generation
from shared.errors import RequestError
from shared.messages.frontend import Delta


class ClientGone(Exception):
    """The client closed its connection, or does not read: nobody is left to answer."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """All output since the last chunk; `last` when the request is over."""

    text: str
    details: tuple[Detail, ...]
    last: bool


@dataclass(slots=True)
class Flight:
    """A submitted request. `request` is its id everywhere; times are of the loop's clock, in seconds.

    `wake` is set when there is something to take; the flights of one HTTP request share it (`choices.py`).
    """

    request: str
    generation: Generation
    prompt_tokens: int
    started: float
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    first_token: float | None = None
    last_token: float | None = None
    error: RequestError | ClientGone | None = None
    transcript: list[str] | None = None
    """All text, if the log shall have it."""
    told: bool = False
    """Whether the last chunk was taken."""
    _text: list[str] = field(default_factory=list)
    _details: list[Detail] = field(default_factory=list)

    @property
    def over(self) -> bool:
        """Whether nothing more can come."""
        return bool(self.generation.finish) or self.error is not None

    def deliver(self, delta: Delta, now: float) -> None:
        """Takes a round's tokens. Raises `ContractBreach`."""
        emission = self.generation.feed(delta)
        if delta.tokens:
            self.first_token = self.first_token or now
            self.last_token = now
        if emission.text:
            self._text.append(emission.text)
            if self.transcript is not None:
                self.transcript.append(emission.text)
        self._details.extend(emission.details)
        if emission.text or emission.details or self.generation.finish:
            self.wake.set()

    def fail(self, error: RequestError | ClientGone) -> None:
        """Ends it with an error, unless it is over already."""
        if not self.over:
            self.error = error
            self.wake.set()

    def take(self) -> Chunk | None:
        """What is there, or None; after the last chunk nothing more."""
        ends = bool(self.generation.finish) and not self.told
        if not (ends or self._text or self._details):
            return None
        chunk = Chunk("".join(self._text), tuple(self._details), ends)
        self._text.clear()
        self._details.clear()
        self.told = ends
        return chunk
