"""A client that is gone costs no more work: after `request.cancelled` at most the rounds that were under way (B23)."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from typing import Any

import httpx
import orjson
import pytest

from shared.frames import FRAMES
from tests.fixtures.harness import Server, wait_until

BUDGET = 900
"""Tokens of an answer that takes many seconds, unless it is ended."""


def told(server: Server, request: str) -> list[dict[str, Any]]:
    """Every line about a request, in the order of time: what `flare logs` reads out of all files."""
    command = (sys.executable, "-m", "compose.cli", "logs", "--json", "--request", request)
    done = subprocess.run(
        (*command, "--log-dir", str(server.log_dir)), capture_output=True, text=True, timeout=60, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def events(lines: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["event"] == name]


def leave_in_the_middle(server: Server, request: str, stream: bool) -> None:
    """Goes after some rounds."""
    url = httpx.URL(server.url)
    messages = [{"role": "user", "content": "sleep:0.02;tell me"}]
    body = orjson.dumps({"messages": messages, "max_tokens": BUDGET, "temperature": 0, "stream": stream})
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-request-id: {request}\r\ncontent-length: {len(body)}\r\n"
    )
    with socket.create_connection((url.host, url.port or 80), timeout=10) as connection:
        connection.sendall(f"{head}content-type: application/json\r\n\r\n".encode() + body)
        wait_until(lambda: len(events(told(server, request), "request.round")) > 2, 30, "rounds")


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_whose_client_is_gone_stops_within_two_rounds(server: Server, stream: bool) -> None:
    request = f"gone-{stream}".lower()
    leave_in_the_middle(server, request, stream)
    wait_until(lambda: bool(events(told(server, request), "request.cancelled")), 10, "cancelled")
    # Others' rounds go on meanwhile; once theirs are in the logs, so are all before.
    after = f"after-{request}"
    with server.client() as client:
        body = {"messages": [{"role": "user", "content": "say:on and on"}], "max_tokens": 20, "temperature": 0}
        assert client.post("/v1/chat/completions", json=body, headers={"x-request-id": after}).status_code == 200
    wait_until(lambda: {"request.finished", "round.replayed"} <= {e["event"] for e in told(server, after)}, 10, "told")

    lines = told(server, request)
    [cancelled] = events(lines, "request.cancelled")
    rounds = events(lines, "request.round")
    assert sum(line["emitted"] for line in rounds) < BUDGET, "it was left in the middle"
    assert all(line["timestamp"] <= cancelled["timestamp"] for line in rounds)
    assert not events(lines, "request.finished") or events(lines, "request.finished")[0]["service"] == "frontend"
    last = max(line["sequence"] for line in rounds)
    replayed = [line for line in events(lines, "round.replayed") if request in line["requests"]]
    assert len([line for line in replayed if line["sequence"] > last]) <= FRAMES
