"""The whole server over T1: a chat, streamed and not, with drafts from every source, through three real processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.harness import Server, wait_until
from tests.fixtures.scripted.vocabulary import encode

TEXT = "hello world, and the naïve café 😀 END. of it"


def acceptance(answer: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = answer["metrics"]["speculative_decoding"]
    return found


def test_a_streamed_answer_has_one_finish_and_a_done(server: Server) -> None:
    with server.stream(f"say:{TEXT}", max_tokens=200, stream_options={"include_usage": True}) as events:
        found = list(events)
    assert "".join(event.text for event in found) == TEXT
    assert [event.finish for event in found if event.finish] == ["stop"]
    assert found[-1].data is None
    usage = [event.data["usage"] for event in found if event.data and event.data.get("usage")]
    assert [u["completion_tokens"] for u in usage] == [len(encode(TEXT)) + 1]


def test_a_whole_answer_equals_the_streamed_one(server: Server) -> None:
    answer = server.chat(f"say:{TEXT}", max_tokens=200)
    assert answer["choices"][0]["message"]["content"] == TEXT
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == len(encode(TEXT)) + 1


@pytest.mark.parametrize("budget", [1, 5, len(encode(TEXT))])
def test_a_budget_ends_it_by_length(server: Server, budget: int) -> None:
    answer = server.chat(f"d1:7/7;say:{TEXT}", max_tokens=budget)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == budget


def test_a_stop_string_ends_it_inside_an_accepted_run(server: Server) -> None:
    answer = server.chat(f"d1:7/7;say:{TEXT}", max_tokens=200, stop=["END"])
    assert answer["choices"][0]["message"]["content"] == TEXT[: TEXT.index("END")]
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_learned_drafts_are_accepted_as_scripted(server: Server) -> None:
    answer = server.chat(f"d1:4/2;say:{TEXT}", max_tokens=200)
    assert answer["choices"][0]["message"]["content"] == TEXT
    learned = acceptance(answer)["by_source"]["learned"]
    assert learned["num_draft_tokens"] > 0
    assert 0 < learned["num_accepted_draft_tokens"] < learned["num_draft_tokens"]


def test_prompt_and_history_are_copied(server: Server) -> None:
    text = "0123456789 abcdefghij 0123456789 abcdefghij klmnopqrst"
    first = server.chat(f"say:{text}", max_tokens=200)
    assert first["choices"][0]["message"]["content"] == text
    assert acceptance(first)["by_source"]["prompt"]["num_accepted_draft_tokens"] > 0
    ids = ",".join(str(token) for token in encode(text))
    again = server.chat(f"ids:{ids}", max_tokens=200)
    assert again["choices"][0]["message"]["content"] == text
    assert acceptance(again)["by_source"]["history"]["num_accepted_draft_tokens"] > 0


def test_a_seed_gives_the_same_sampled_text_with_and_without_copies(server: Server) -> None:
    fields = {"temperature": 1.0, "seed": 11, "max_tokens": 48}
    assert len({server.chat("tell me", **fields)["choices"][0]["message"]["content"] for _ in range(3)}) == 1
    assert server.chat("tell me", **{**fields, "seed": 12})["choices"][0]["message"]["content"] != ""


def test_the_model_is_listed(server: Server) -> None:
    with server.client() as client:
        assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["scripted"]
        assert client.get("/health").status_code == 200


def test_every_line_of_the_log_names_its_service(core: Path) -> None:
    with Server(core) as server:
        server.wait_ready()
        server.chat("say:hello")
        wait_until(lambda: server.log.count('"request.finished"') >= 2, 10, "frontend and scheduler tell of the end")
        lines = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
    assert {line["service"] for line in lines} == {"supervisor", "frontend", "scheduler", "worker"}
    assert {"worker.captured", "request.finished"} <= {line["event"] for line in lines}
    assert "say:hello" not in json.dumps(lines), "prompts are never logged"
