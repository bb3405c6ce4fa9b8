"""A server that is ready has loaded what it needs: no request waits for a module, which takes tens of milliseconds."""

from __future__ import annotations

import time
from pathlib import Path

from tests.fixtures import imports
from tests.fixtures.harness import Server
from tests.fixtures.scripted.vocabulary import render
from tests.frontend.client import COMPLETIONS, PATH, Chat


def test_nothing_is_imported_for_requests(core: Path, tmp_path: Path) -> None:
    with Server(core, environment=imports.environment(tmp_path)) as server:
        server.wait_ready()
        ready = time.monotonic()
        with server.client() as client:
            for path, body, likely in (
                (PATH, {"messages": [{"role": "user", "content": "say:hello"}]}, {"logprobs": True, "top_logprobs": 2}),
                (COMPLETIONS, {"prompt": render(("user", "say:hello"))}, {"logprobs": 2}),
            ):
                for fields in ({}, likely, {"seed": 3, "temperature": 1, "top_k": 2, "presence_penalty": 1, "n": 2}):
                    Chat(client, path).stream(max_tokens=8, **body, **fields)
                assert Chat(client, path).whole(max_tokens=8, temperature=0, **body, **likely).text == "hello"
            scored = {"prompt": "hello", "max_tokens": 0, "echo": True, "logprobs": 1}
            assert client.post(COMPLETIONS, json=scored).status_code == 200
            assert client.post(PATH, json={"messages": []}).status_code == 400
            assert {client.get(page).status_code for page in ("/", "/v1/models", "/metrics", "/health")} == {200}
        assert imports.imported(tmp_path, ready, time.monotonic()) == []
        assert len(imports.imported(tmp_path, 0.0, ready)) > 100, "nothing was noted at all"
