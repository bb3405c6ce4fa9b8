"""`POST /tokenize` and `POST /detokenize` in vLLM's shapes: the ids of a text or a conversation, and back. Frontend.

They need the core alone, so they answer while scheduler or worker are away; the work itself is done in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import structlog
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from services.frontend.api import conversation
from services.frontend.api.body import body_limit, reading_body
from services.frontend.api.decoding import decode
from services.frontend.api.schema import TokenId, Turn
from services.frontend.core import Core
from services.frontend.flight import ClientGone
from services.frontend.state import FrontendState
from shared.errors import InvalidRequest

_KNOWN: dict[str, tuple[Any, ...]] = {
    "chat_template": (), "documents": ([],), "media_io_kwargs": (), "mm_processor_kwargs": (), "tools": ([],),
}  # fmt: skip
"""Fields of vLLM's that are not served, with the values that ask for nothing."""

log = structlog.get_logger()


class TokenizeRequest(msgspec.Struct):
    """The body of `/tokenize`: either `prompt` or `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Turn], Meta(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TokenizeAnswer(msgspec.Struct):
    """The ids, and how many there are of how many that fit."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct):
    """The body of `/detokenize`."""

    tokens: list[TokenId]
    model: str | None = None


class DetokenizeAnswer(msgspec.Struct):
    """The text, special tokens included."""

    prompt: str


def _ids(core: Core, request: TokenizeRequest) -> tuple[int, ...]:
    """What the endpoint of the same input would take as its prompt."""
    if (request.prompt is None) == (request.messages is None):
        raise InvalidRequest("give either prompt or messages", param="prompt" if request.prompt is None else "messages")
    if request.prompt is not None:
        for name in ("add_generation_prompt", "continue_final_message", "chat_template_kwargs"):
            if getattr(request, name):
                raise InvalidRequest(f"{name} goes with messages, not with prompt", param=name)
        return core.encode_text(request.prompt, add_special_tokens=request.add_special_tokens is not False)
    if request.add_special_tokens:
        reason = "with messages the chat template alone decides about special tokens"
        raise InvalidRequest(reason, param="add_special_tokens")
    goes_on = bool(request.continue_final_message)
    return core.encode_chat(
        conversation.turns(request.messages or ()),
        add_generation_prompt=not goes_on if request.add_generation_prompt is None else request.add_generation_prompt,
        continue_final_message=goes_on,
        kwargs=request.chat_template_kwargs,
    )


def take_text(core: Core, body: bytes) -> TokenizeAnswer:
    """`/tokenize`. Blocking. Raises a `RequestError` that names the field."""
    request = decode(TokenizeRequest, body, _KNOWN)
    core.check_model(request.model)
    ids = list(_ids(core, request))
    return TokenizeAnswer(
        count=len(ids),
        max_model_len=core.context,
        tokens=ids,
        token_strs=core.tokenization.names(ids) if request.return_token_strs else None,
    )


def take_tokens(core: Core, body: bytes) -> DetokenizeAnswer:
    """`/detokenize`. Blocking. Raises a `RequestError` that names the field."""
    request = decode(DetokenizeRequest, body, {})
    core.check_model(request.model)
    limit = core.manifest.geometry.vocab_size
    if max(request.tokens, default=0) >= limit:
        place = next(index for index, token in enumerate(request.tokens) if token >= limit)
        raise InvalidRequest(f"a token id must be below {limit}", param=f"tokens[{place}]")
    return DetokenizeAnswer(core.tokenization.decode(request.tokens))


@dataclass(frozen=True, slots=True)
class TextEndpoint:
    """One of the two paths. `take` answers a body, in one of `threads`."""

    state: FrontendState
    threads: ThreadPoolExecutor
    take: Callable[[Core, bytes], msgspec.Struct]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request. Raises `RequestError`."""
        request = Request(scope, receive)
        core = self.state.admit_text()
        self.state.open_requests += 1
        try:
            async with reading_body(request, body_limit(core.context), self.state) as body:
                log.info("request.received", body_bytes=len(body))
                answer = await asyncio.get_running_loop().run_in_executor(self.threads, self._work, core, body)
            del body
            await Response(answer, media_type="application/json")(scope, receive, send)
            log.info("request.answered", answer_bytes=len(answer))
        except ClientGone:
            log.info("request.abandoned")
        finally:
            self.state.open_requests -= 1

    def _work(self, core: Core, body: bytes) -> bytes:
        return msgspec.json.encode(self.take(core, body))
