"""What waits for a slow client is one chunk, and a flight ends once."""

from __future__ import annotations

from services.frontend.flight import Chunk, ClientGone, Flight
from services.frontend.generation import Generation
from services.frontend.request_ids import REMEMBERED, RequestIds
from services.frontend.stops import StopStrings
from services.frontend.vocabulary import read_vocabulary
from shared.messages.frontend import Delta, Finish
from tests.frontend.small_core import END, make_tokenizer

BYTES = read_vocabulary(make_tokenizer(), make_tokenizer().to_str().encode())


def make_flight() -> Flight:
    return Flight("r", Generation(BYTES, StopStrings(()), 100), prompt_tokens=1, started=0.0)


def deliver(flight: Flight, tokens: bytes, finish: Finish = "") -> None:
    more = (END,) if finish == "stop" else ()
    flight.deliver(
        Delta(request="r", epoch=1, start=flight.generation.count, tokens=(*tokens, *more), finish=finish), 1.0
    )


def test_pending_deltas_come_as_one_chunk() -> None:
    flight = make_flight()
    deliver(flight, b"ab")
    deliver(flight, b"cd")
    assert flight.take() == Chunk("abcd", (), False)
    assert flight.take() is None
    deliver(flight, b"e", "stop")
    assert flight.take() == Chunk("e", (), True)
    assert flight.take() is None


def test_a_finished_flight_cannot_fail() -> None:
    flight = make_flight()
    deliver(flight, b"", "stop")
    flight.fail(ClientGone())
    assert flight.error is None


def test_ids_are_unique_and_remembered_within_bounds() -> None:
    ids = RequestIds()
    given = [ids.take("same") for _ in range(3)]
    assert given[0] == "same"
    assert len(set(given)) == 3
    for _ in range(REMEMBERED):
        ids.take(None)
    assert ids.take("same") == "same"
