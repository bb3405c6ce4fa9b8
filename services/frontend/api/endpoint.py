"""The ASGI endpoint behind `/v1/chat/completions` and `/v1/completions`, streaming and not. Frontend process.

It reads the body, has it checked and encoded in a thread, submits its choices, and writes what their flights bring. A
watcher cancels them in the scheduler the moment that the client's connection ends, whatever is being waited for.
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

from services.frontend.api.answer import AnyAnswer
from services.frontend.api.body import body_limit, reading_body
from services.frontend.api.order import ChoiceOrder, Order, choice_sampling
from services.frontend.api.stream import write_stream
from services.frontend.choices import Choices
from services.frontend.content_log import tell_output, tell_prompts
from services.frontend.core import Core
from services.frontend.flight import Chunk, ClientGone, Flight
from services.frontend.generation import Detail, Generation, ScoredPrompt
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


def _generation(core: Core, order: Order, choice: ChoiceOrder) -> Generation:
    return Generation(
        vocabulary=core.vocabulary,
        stops=StopStrings(order.stops, keep=order.include_stop),
        max_tokens=choice.max_tokens,
        min_tokens=order.sampling.min_tokens,
        logprobs=order.sampling.logprobs >= 0,
        detailed=order.token_sources,
        show_end=order.include_stop,
        show_special=order.show_special,
        scored=ScoredPrompt(choice.ids, core.vocabulary, -choice.lead) if order.scored else None,
        silent=choice.silent,
        echoed=len(choice.echo),
    )


async def _everything(choices: Choices) -> list[Chunk]:
    """All output of each choice, once all are over. Raises the first error."""
    texts: list[list[str]] = [[] for _ in choices.flights]
    details: list[list[Detail]] = [[] for _ in choices.flights]
    while found := await choices.next(patient=False):
        for index, chunk in found:
            texts[index].append(chunk.text)
            details[index].extend(chunk.details)
    return [Chunk("".join(text), tuple(some), True) for text, some in zip(texts, details, strict=True)]


@dataclass(frozen=True, slots=True)
class GenerationEndpoint:
    """One path. `take` makes the order out of a body, in one of `threads`; `answer` shapes what comes back.

    `prompt` is the field that holds the prompt, which the scheduler calls `messages` in its refusals.
    """

    state: FrontendState
    threads: ThreadPoolExecutor
    take: Callable[[Core, bytes], Order]
    answer: type[AnyAnswer]
    prompt: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request. Raises `RequestError` as long as nothing was sent."""
        request = Request(scope, receive)
        core = self.state.admit()
        self.state.open_requests += 1
        try:
            loop = asyncio.get_running_loop()
            async with reading_body(request, body_limit(core.context), self.state) as body:
                log.info("request.received", body_bytes=len(body))
                request.state.arrived = loop.time()
                order = await loop.run_in_executor(self.threads, self.take, core, body)
            del body
            log.info(
                "request.tokenised",
                prompt_tokens=order.prompt_tokens,
                max_tokens=max(choice.max_tokens for choice in order.choices),
                choices=len(order.choices),
            )
            if self.state.log_content:
                prompts = {choice.prompt: choice.ids for choice in order.choices}.values()
                await loop.run_in_executor(self.threads, tell_prompts, core, request.state.request_id, prompts)
            await self._serve(core, order, request, send)
        except ClientGone:
            log.info("request.abandoned")
        finally:
            self.state.open_requests -= 1

    async def _serve(self, core: Core, order: Order, request: Request, send: Send) -> None:
        choices = self._choices(core, order, request.state.request_id, request.state.arrived)
        self.state.served()  # things may have changed while the prompt was encoded
        choices.submit([self._message(order, *pair) for pair in enumerate(choices.flights)])
        request.state.flight = request.state.request_id  # from here on `_account` counts it
        answer = self.answer(
            request.state.request_id, core.model, core.vocabulary, order, choices.flights, core.manifest.draft_tokens
        )
        try:
            async with _watching(request.receive, choices.abandon):
                if order.stream:
                    await write_stream(choices, answer, request.scope, send, self.state.keep_alive)
                else:
                    body = answer.whole(await _everything(choices))
                    await Response(body, media_type="application/json")(request.scope, request.receive, send)
        except RequestError as error:
            error.param = self.prompt if error.param == "messages" else error.param
            raise
        finally:
            choices.release()
            self._account(choices, answer)

    def _choices(self, core: Core, order: Order, request: str, arrived: float) -> Choices:
        wake = asyncio.Event()
        several = len(order.choices) > 1
        flights = tuple(
            Flight(
                f"{request}/{index}" if several else request,
                _generation(core, order, choice),
                len(choice.ids),
                arrived,
                wake,
                transcript=[] if self.state.log_content else None,
            )
            for index, choice in enumerate(order.choices)
        )
        return Choices(self.state.link, flights, wake)

    def _message(self, order: Order, index: int, flight: Flight) -> Submit:
        choice = order.choices[index]
        return Submit(
            instance=self.state.link.instance,
            request=flight.request,
            prompt=choice.ids,
            sampling=choice_sampling(order, choice),
            max_tokens=choice.max_tokens,
            end_ids=order.end_ids,
            choice=index,
            scored=order.scored,
        )

    def _account(self, choices: Choices, answer: AnyAnswer) -> None:
        """Counts every choice and logs the request. Those that another's error took along are no outcome of theirs."""
        failed = choices.error is not None
        outcomes = {self.state.meters.account(flight) for flight in choices.flights if flight.over or not failed}
        usage, drafts = answer.usage(), answer.drafts()
        log.info(
            "request.finished",
            outcome=",".join(sorted(outcomes)),
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.prompt_tokens_details.cached_tokens,
            drafts_offered=drafts.offered,
            drafts_accepted=drafts.accepted,
        )
        if self.state.log_content:
            tell_output(choices.flights)
