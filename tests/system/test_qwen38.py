"""Qwen3.8-Flash through the three services: a tiny checkpoint, its core in each way of serving, and MTP rounds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from compose import ignition
from shared import metrics
from shared.manifest import read
from tests.fixtures.harness import Server, events, wait_until
from tests.system.scrapes import scrape

PROMPTS = ("hello", "why is the sky blue? " * 4)
BUDGET = 16
CHECKPOINTS_OWN = {"temperature": 1.0, "top_k": 20, "top_p": 0.95}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`ignition tiny`, and a core for each way of serving."""
    path = tmp_path_factory.mktemp("qwen-served")
    assert CliRunner().invoke(ignition.main, ["tiny", "qwen3.8-flash", str(path / "checkpoint")]).exit_code == 0
    for name, options in (
        ("both", []),
        ("only", ["--mtp-only", "--speculative-widths", "1,3,8", "--snapshot-slots", "0"]),
        ("no", ["--no-mtp"]),
    ):
        arguments = ["export", "qwen3.8-flash", str(path / "checkpoint"), str(path / name), "--context-length", "512"]
        shown = CliRunner().invoke(ignition.main, [*arguments, *options])
        assert shown.exit_code == 0, shown.output
    return path


@contextmanager
def running(core: Path, *options: str, debugged: bool = False) -> Iterator[Server]:
    """A ready server of row-invariant arithmetic: equal seeds give equal tokens. `debugged`: in one process."""
    with Server(core, ("--deterministic", "--threads", "1", *options), debugged=debugged) as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    """The core of both ways, which drafts five tokens in every round."""
    with running(folder / "both") as found:
        yield found


def asked(server: Server, text: str, **fields: Any) -> dict[str, Any]:
    """An answer to one user message, with exactly these sampling fields and every token's bytes."""
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": BUDGET, "logprobs": True, **fields}
    with server.client() as client:
        response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def tokens(answer: dict[str, Any]) -> list[tuple[str, list[int] | None]]:
    """Each token, and its bytes: the text of a random model is not valid UTF-8."""
    return [(part["token"], part["bytes"]) for part in answer["choices"][0]["logprobs"]["content"]]


def greedy(server: Server) -> list[list[tuple[str, list[int] | None]]]:
    return [tokens(asked(server, prompt, temperature=0)) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def spoken(server: Server) -> list[list[tuple[str, list[int] | None]]]:
    """What the speculative server says, greedily."""
    return greedy(server)


def offered(server: Server, source: str) -> tuple[float, float]:
    """Drafts of a source that were verified, and those of them that were accepted, by the scheduler's counters."""
    counted = scrape(server, "scheduler")
    return tuple(  # type: ignore[return-value]  # two of them
        counted.total(name, source=source) for name in (metrics.OFFERED_BY_SOURCE, metrics.ACCEPTED_BY_SOURCE)
    )


def test_a_chat_streams_with_mtp_rounds_of_which_drafts_are_accepted(server: Server) -> None:
    before = offered(server, "learned")
    body: dict[str, Any] = {"messages": [{"role": "user", "content": PROMPTS[0]}], "max_tokens": 80, "seed": 5}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    with server.client() as client, client.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200
        found = list(events(response))
    assert "".join(event.text for event in found)
    assert [event.finish for event in found if event.finish] in (["length"], ["stop"])
    [usage] = [event.data["usage"] for event in found if event.data and event.data.get("usage")]
    assert 1 < usage["completion_tokens"] <= 80
    assert found[-1].data is None
    verified, accepted = (after - was for after, was in zip(offered(server, "learned"), before, strict=True))
    assert verified > usage["completion_tokens"] / 2, "five drafts a round"
    assert 0 < accepted < verified
    assert offered(server, "history") == offered(server, "prompt") == (0, 0)


def test_the_checkpoints_sampling_defaults_hold_for_a_request_without_values(server: Server, folder: Path) -> None:
    defaults = read(folder / "both").defaults
    assert {name: getattr(defaults, name) for name in CHECKPOINTS_OWN} == CHECKPOINTS_OWN
    own = [tokens(asked(server, PROMPTS[0], seed=seed)) for seed in (1, 2)]
    assert own == [tokens(asked(server, PROMPTS[0], seed=seed, **CHECKPOINTS_OWN)) for seed in (1, 2)]
    assert own != [tokens(asked(server, PROMPTS[0], seed=seed, top_k=-1, top_p=1.0)) for seed in (1, 2)]


def test_a_client_that_leaves_frees_its_slot_and_pages(server: Server) -> None:
    def held() -> tuple[float, float]:
        now = scrape(server, "scheduler")
        return now.total(metrics.REQUESTS_RUNNING), now.total(metrics.PAGES_FREE)

    with server.stream(PROMPTS[1], max_tokens=300) as found:
        for count, _ in enumerate(found):
            if count == 5:
                break
    wait_until(lambda: held()[0] == 0, 20, "nothing runs")
    pages = held()[1]
    for _ in range(read(server.core).geometry.concurrency + 1):
        with server.stream(PROMPTS[1], max_tokens=300) as found:
            next(found)
    wait_until(lambda: held() == (0, pages), 20, "as many pages are free as before")


def test_ordinary_serving_of_the_same_core_says_the_same(server: Server, folder: Path, spoken: list[Any]) -> None:
    assert offered(server, "learned")[0] > 0
    with running(folder / "both", "--mtp-draft-tokens", "0") as ordinary:
        assert greedy(ordinary) == spoken
        again = asked(ordinary, PROMPTS[1], temperature=0)
        assert tokens(again) == spoken[1]
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64
        assert offered(ordinary, "learned") == (0, 0)


def test_a_core_without_a_drafter_says_the_same(folder: Path, spoken: list[Any]) -> None:
    with running(folder / "no", debugged=True) as without:
        assert greedy(without) == spoken
        assert "metrics" not in asked(without, PROMPTS[0], temperature=0)


def test_a_core_of_other_widths_that_only_speculates_and_keeps_no_snapshot_says_the_same(
    folder: Path, spoken: list[Any]
) -> None:
    with running(folder / "only", "--speculative-fixed-width", "3", debugged=True) as other:
        assert greedy(other) == spoken
        verified, _ = offered(other, "learned")
        assert 0 < verified <= 2 * len(PROMPTS) * BUDGET
        again = asked(other, PROMPTS[1], temperature=0)
        assert tokens(again) == spoken[1]
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, "no row keeps its recurrent state"
