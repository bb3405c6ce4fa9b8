"""A stream whose client does not read is given up, and its connection dropped with what it has buffered."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message

from services.frontend.api import stream
from services.frontend.api.answer import Answer
from services.frontend.flight import ClientGone, Flight
from services.frontend.generation import Generation
from services.frontend.stops import StopStrings
from services.frontend.vocabulary import read_vocabulary
from shared.messages.frontend import Delta
from tests.frontend.small_core import make_tokenizer


def test_a_client_that_never_reads_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "STALL_S", 0.05)
    vocabulary = read_vocabulary(make_tokenizer(), make_tokenizer().to_str().encode())
    dropped: list[bool] = []

    async def never(message: Message) -> None:
        await asyncio.Event().wait()

    async def scenario() -> None:
        generation = Generation(vocabulary, StopStrings(()), 100)
        flight = Flight("r", generation, prompt_tokens=1, started=0.0)
        answer = Answer("r", "m", generation, prompt_tokens=1, draft_tokens=0)
        flight.deliver(Delta(request="r", epoch=1, start=0, tokens=(65,)), 1.0)
        scope = {"type": "http", "extensions": {stream.ABORT: lambda: dropped.append(True)}}
        with pytest.raises(ClientGone):
            await stream.write_stream(flight, answer, scope, never)

    asyncio.run(scenario())
    assert dropped == [True]
