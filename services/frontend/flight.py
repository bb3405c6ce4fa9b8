"""One request in flight: joins the scheduler link, which delivers, with the HTTP task, which waits. Event loop only.

Deltas are decoded when they come, whether or not the client reads, so acknowledgements never wait for a slow client.
What it has not read is kept as one pending chunk, which its output budget bounds.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from services.frontend.generation import Generation, Scored
from shared.errors import RequestError
from shared.messages.frontend import Delta


class ClientGone(Exception):
    """The client closed its connection, or does not read: nobody is left to answer."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """All output since the last chunk; `last` when the request is over."""

    text: str
    scored: tuple[Scored, ...]
    last: bool


@dataclass(slots=True)
class Flight:
    """A submitted request. `request` is its id everywhere; times are of the loop's clock, in seconds."""

    request: str
    generation: Generation
    prompt_tokens: int
    started: float
    first_token: float | None = None
    last_token: float | None = None
    error: RequestError | ClientGone | None = None
    _text: list[str] = field(default_factory=list)
    _scored: list[Scored] = field(default_factory=list)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def over(self) -> bool:
        """Whether nothing more can come."""
        return bool(self.generation.finish) or self.error is not None

    def deliver(self, delta: Delta, now: float) -> None:
        """Takes a round's tokens. Raises `ContractBreach`."""
        emission = self.generation.feed(delta)
        if self.first_token is None:
            self.first_token = now
        self.last_token = now
        if emission.text:
            self._text.append(emission.text)
        self._scored.extend(emission.scored)
        if emission.text or emission.scored or self.generation.finish:
            self._wake.set()

    def fail(self, error: RequestError | ClientGone) -> None:
        """Ends it with an error, unless it is over already."""
        if not self.over:
            self.error = error
            self._wake.set()

    async def next(self) -> Chunk:
        """The next chunk, waiting for it. Raises the request's error once all text before it was taken."""
        await self._wake.wait()
        self._wake.clear()
        text, scored = "".join(self._text), tuple(self._scored)
        self._text.clear()
        self._scored.clear()
        if self.error is not None:
            self._wake.set()  # an error stays
            if isinstance(self.error, ClientGone) or not (text or scored):
                raise self.error
        return Chunk(text, scored, bool(self.generation.finish))
