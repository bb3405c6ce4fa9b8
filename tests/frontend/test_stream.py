"""A stream whose client does not read is given up, and its connection dropped with what it has buffered."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import zmq
from starlette.types import Message

from services.frontend.api import stream
from services.frontend.api.chat_answer import ChatAnswer
from services.frontend.api.order import take_chat
from services.frontend.choices import Choices
from services.frontend.core import load_core
from services.frontend.flight import ClientGone, Flight
from services.frontend.generation import Generation
from services.frontend.link import SchedulerLink
from services.frontend.stops import StopStrings
from shared.messages.frontend import Delta


def test_a_client_that_never_reads_is_given_up(
    core: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "STALL_S", 0.05)
    loaded = load_core(core[0], None)
    order = take_chat(loaded, b'{"messages": [{"role": "user", "content": "hi"}], "stream": true}')
    dropped: list[bool] = []

    async def never(message: Message) -> None:
        await asyncio.Event().wait()

    async def scenario() -> None:
        wake = asyncio.Event()
        generation = Generation(loaded.vocabulary, StopStrings(()), 100)
        flight = Flight("r", generation, prompt_tokens=1, started=0.0, wake=wake)
        link = SchedulerLink(context, f"ipc://{tmp_path}/none")
        answer = ChatAnswer("r", "m", loaded.vocabulary, order, (flight,), draft_tokens=0)
        flight.deliver(Delta(request="r", epoch=1, start=0, tokens=(65,)), 1.0)
        scope = {"type": "http", "extensions": {stream.ABORT: lambda: dropped.append(True)}}
        with pytest.raises(ClientGone):
            await stream.write_stream(Choices(link, (flight,), wake), answer, scope, never, keep_alive=5)
        link.close()

    context = zmq.Context[zmq.Socket[bytes]]()
    asyncio.run(scenario())
    context.term()
    assert dropped == [True]
