"""`POST /v1/chat/completions`, streaming and not: one ASGI endpoint of the frontend process.

It reads the body, has it checked and encoded in a thread, submits it, and writes what the flight brings. A watcher
cancels the request in the scheduler the moment that the client's connection ends, whatever is being waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from services.frontend.api.answer import Answer
from services.frontend.api.body import body_limit, read_body
from services.frontend.api.order import Order, take_order
from services.frontend.api.stream import write_stream
from services.frontend.core import Core
from services.frontend.flight import ClientGone, Flight
from services.frontend.generation import Generation, Scored
from services.frontend.state import FrontendState
from services.frontend.stops import StopStrings
from shared.errors import RequestError
from shared.messages.scheduler import Submit

log = structlog.get_logger()


@asynccontextmanager
async def _watching(receive: Receive, gone: Callable[[], None]) -> AsyncIterator[None]:
    """Calls `gone` once the client's connection ends."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone()

    task = asyncio.create_task(watch())
    try:
        yield
    finally:
        if task.done():
            task.result()  # an error in the watcher is an error of the request
        task.cancel()


@dataclass(frozen=True, slots=True)
class ChatEndpoint:
    """The endpoint. `threads` run templates and the tokenizer."""

    state: FrontendState
    threads: ThreadPoolExecutor

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request. Raises `RequestError` as long as nothing was sent."""
        request = Request(scope, receive)
        core = self.state.admit()
        self.state.open_requests += 1
        try:
            body = await read_body(request, body_limit(core.context))
            log.info("request.received", body_bytes=len(body))
            loop = asyncio.get_running_loop()
            order = await loop.run_in_executor(self.threads, take_order, core, body)
            del body
            log.info("request.tokenised", prompt_tokens=len(order.prompt), max_tokens=order.max_tokens)
            await self._serve(core, order, request, send)
        except ClientGone:
            log.info("request.abandoned")
        finally:
            self.state.open_requests -= 1

    async def _serve(self, core: Core, order: Order, request: Request, send: Send) -> None:
        flight = self._flight(core, order, request.state.request_id)
        self.state.admit()  # things may have changed while the prompt was encoded
        self.state.link.submit(flight, self._message(flight, order))
        request.state.flight = flight.request  # from here on `_account` counts it
        answer = Answer(
            flight.request,
            core.model,
            flight.generation,
            flight.prompt_tokens,
            core.manifest.draft_tokens,
            order.include_usage,
        )
        try:
            async with _watching(request.receive, lambda: self.state.link.abandon(flight)):
                if order.stream:
                    await write_stream(flight, answer, request.scope, send)
                else:
                    await self._write_whole(flight, answer, request, send)
        finally:
            self.state.link.release(flight)
            self._account(flight)

    def _flight(self, core: Core, order: Order, request: str) -> Flight:
        generation = Generation(
            vocabulary=core.vocabulary,
            stops=StopStrings(order.stops),
            max_tokens=order.max_tokens,
            min_tokens=order.sampling.min_tokens,
            logprobs=order.sampling.logprobs >= 0,
        )
        return Flight(request, generation, len(order.prompt), asyncio.get_running_loop().time())

    def _message(self, flight: Flight, order: Order) -> Submit:
        return Submit(
            instance=self.state.link.instance,
            request=flight.request,
            prompt=order.prompt,
            sampling=order.sampling,
            max_tokens=order.max_tokens,
            end_ids=order.end_ids,
        )

    async def _write_whole(self, flight: Flight, answer: Answer, request: Request, send: Send) -> None:
        text: list[str] = []
        scored: list[Scored] = []
        last = False
        while not last:
            chunk = await flight.next()
            text.append(chunk.text)
            scored.extend(chunk.scored)
            last = chunk.last
        body = answer.whole("".join(text), scored)
        await Response(body, media_type="application/json")(request.scope, request.receive, send)

    def _account(self, flight: Flight) -> None:
        generation = flight.generation
        outcome: str = generation.finish or "abandoned"
        if isinstance(flight.error, RequestError):
            outcome = flight.error.code
            self.state.meters.failed.labels(outcome).inc()
        log.info(
            "request.finished",
            outcome=outcome,
            prompt_tokens=flight.prompt_tokens,
            completion_tokens=generation.count,
            cached_tokens=generation.cached_tokens,
            drafts_offered=generation.counts.offered,
            drafts_accepted=generation.counts.accepted,
        )
        if generation.finish:
            self.state.meters.count_finished(flight)
