"""A load client: streams chat completions over real HTTP and notes when each piece came.

One thread a stream. Times are nanoseconds of the monotonic clock, the one that recordings of rounds use too.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any

from compose.readiness import Address
from shared.errors import ProcessError


@dataclass(frozen=True, slots=True)
class Stream:
    """One finished stream."""

    begin_ns: int
    first_ns: int
    end_ns: int
    prompt_tokens: int
    tokens: int
    offered: int
    accepted: int
    finish: str
    text: str


def _events(response: http.client.HTTPResponse) -> Any:
    for line in response:
        if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
            yield json.loads(line[6:])


def stream(address: Address, body: dict[str, Any]) -> Stream:
    """Runs one streaming chat completion to its end. Raises `ProcessError` on anything but success."""
    connection = http.client.HTTPConnection(address.reachable, address.port, timeout=600)
    begin, first, finish = monotonic_ns(), 0, ""
    text: list[str] = []
    usage: dict[str, Any] = {}
    whole = {**body, "stream": True, "stream_options": {"include_usage": True}}
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(whole), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise ProcessError(f"the server answered {response.status}: {response.read()[:500]!r}")
        drafts: dict[str, Any] = {}
        for event in _events(response):
            if "error" in event:
                raise ProcessError(f"the stream failed: {event['error']}")
            usage = event.get("usage") or usage
            drafts = (event.get("metrics") or {}).get("speculative_decoding") or drafts
            for choice in event["choices"]:
                if piece := choice["delta"].get("content"):
                    first = first or monotonic_ns()
                    text.append(piece)
                finish = choice.get("finish_reason") or finish
    finally:
        connection.close()
    return Stream(
        begin,
        first,
        monotonic_ns(),
        usage["prompt_tokens"],
        usage["completion_tokens"],
        drafts.get("num_draft_tokens", 0),
        drafts.get("num_accepted_draft_tokens", 0),
        finish,
        "".join(text),
    )


def streams(address: Address, bodies: Sequence[dict[str, Any]], concurrency: int) -> list[Stream]:
    """Runs the bodies with at most `concurrency` at once, in order."""
    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(lambda body: stream(address, body), bodies))
