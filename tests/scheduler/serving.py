"""Requests over a desk whose prefix cache is in use: texts, cores of both kinds, and a request from start to end."""

from __future__ import annotations

from typing import Any

import pytest

from services.scheduler.controller import FixedWidth
from services.scheduler.requests import Request, RequestKey
from shared.frames import FRAMES, Fault, Meta
from shared.manifest import Manifest
from tests.scheduler.cores import manifest, output, remembering
from tests.scheduler.desk import FRONTEND, Desk, submit

BOTH = pytest.mark.parametrize("rows", [0, 8])
ROWS = 8


def words(count: int, kind: int = 0) -> list[int]:
    return [10 + (i * 7 + kind * 13 + i * i * kind) % 400 for i in range(count)]


def core_of(**sizes: Any) -> Manifest:
    """Its chunks end at no boundary by themselves."""
    return manifest(**{"prefill": (16, 100), **sizes})


def desk_of(core: Manifest, cache: bool = True) -> Desk:
    return Desk(core, remembering, FixedWidth(), cache=cache)


def run(desk: Desk, name: str, prompt: list[int], budget: int = 4, **law: Any) -> int:
    """Serves one request to its end, acknowledged; how much of it was cached. Its text is what no cache would give."""
    desk.submit(submit(name, prompt, budget, **law))
    desk.drain(acknowledging=True)
    desk.settle()
    assert desk.output[name] == output(remembering, prompt, budget)
    return desk.cached[-1][1]


def turn(desk: Desk) -> None:
    desk.plan()
    desk.replay()
    desk.complete()


def speak(desk: Desk, name: str, prompt: list[int], budget: int = 100, count: int = 1) -> Request:
    """A request that has said `count` tokens, and goes on."""
    desk.submit(submit(name, prompt, budget))
    while len(desk.output.get(name, [])) < count:
        turn(desk)
    return request_of(desk, name)


def request_of(desk: Desk, name: str) -> Request:
    return desk.roster.requests[RequestKey(FRONTEND, name)]


def refuse(desk: Desk, name: str, fault: Fault) -> None:
    """The next record of a request that runs tells a fault, and the scheduler hears of it."""
    request = request_of(desk, name)
    while not desk.queued or request not in desk.queued[0][1].requests:
        turn(desk)
        desk.plan()
    sequence = desk.queued[0][0]
    while desk.replayed <= sequence:
        desk.replay()
    desk.outs[sequence % FRAMES].records[request.slot, Meta.FAULTS] = fault
    desk.complete()
    desk.check()
