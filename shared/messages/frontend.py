"""What a frontend receives, all of it from the scheduler."""

from __future__ import annotations

from typing import Literal

import msgspec

from shared.messages.common import DraftCounts, Message, TokenLogprobs

Finish = Literal["", "stop", "length"]


class Welcome(Message, frozen=True, kw_only=True):
    """Answer to `FrontendHello`: whom the frontend now talks to and which core is served."""

    manifest_digest: str


class Status(Message, frozen=True, kw_only=True):
    """State of scheduler and worker; sent on change, as the answer to a ping, and once a second.

    `free_pages` are those that no request holds, cached ones among them.
    """

    ready: bool
    reason: str
    running: int
    waiting: int
    free_pages: int


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens that one round added to one request. `start` counts generated tokens before them.

    With `finish` the request is over on the device: `stop` means that the last token is an end token. `counts` covers
    the request so far, `cached_tokens` are those of the prompt whose state it found in the prefix cache. `scores` are
    of the prompt's tokens from position `scored_from` on; the first token has none.
    """

    request: str
    epoch: int
    start: int
    tokens: tuple[int, ...]
    sources: tuple[int, ...] = ()
    """Per token `shared.frames.Source` of the accepted draft it came from; 0 when sampled."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish: Finish = ""
    cached_tokens: int = 0
    counts: DraftCounts = DraftCounts()
    scores: tuple[TokenLogprobs, ...] = ()
    scored_from: int = 1


class Tokens(Message, frozen=True, kw_only=True):
    """One completed round's tokens for this frontend's requests."""

    sequence: int
    deltas: tuple[Delta, ...]


class Failed(Message, frozen=True, kw_only=True):
    """A request ended with an error; `code` is a wire code of `shared.errors.REQUEST_ERRORS`."""

    request: str
    code: str
    message: str
    param: str | None = None


FromScheduler = Welcome | Status | Tokens | Failed
FROM_SCHEDULER: msgspec.msgpack.Decoder[FromScheduler] = msgspec.msgpack.Decoder(FromScheduler)
