"""One request followed through the logs of three real services; what is in them, and what never is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.harness import Server, wait_until
from tests.fixtures.scripted.recipe import make_core

SECRET = "Zanzibar"
ANSWER = "quokkas 0123456789 abcdefghij 0123456789 abcdefghij"
ROUNDS = ("request.round", "round.replayed")
"""A round as scheduler and worker tell of it."""
SMALL = ("--log-max-bytes", "20000", "--log-files", "50")


@pytest.fixture(scope="module")
def logged(core: Path) -> Iterator[Server]:
    """A ready server with small log files and a fixed width."""
    with Server(core, ("--no-mtp-adaptive-verification", *SMALL)) as running:
        running.wait_ready()
        yield running


def flare_logs(server: Server, *arguments: str) -> list[dict[str, Any]]:
    """What `flare logs --json` shows, as a user would call it."""
    done = subprocess.run(
        (sys.executable, "-m", "compose.cli", "logs", "--json", "--log-dir", str(server.log_dir), *arguments),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0 or "no line about" in done.stderr, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def ask(server: Server, request: str, text: str, **fields: Any) -> Any:
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 200, **fields}
    with server.client() as client:
        return client.post("/v1/chat/completions", json=body, headers={"X-Request-Id": request})


def followed(server: Server, request: str) -> list[dict[str, Any]]:
    """All lines about a request that has ended: each service writes its own within a tenth of a second."""

    def whole() -> bool:
        lines = flare_logs(server, "--request", request)
        rounds = [{line["sequence"] for line in lines if line["event"] == name} for name in ROUNDS]
        ended = [line["service"] for line in lines if line["event"] == "request.finished"]
        return {"frontend", "scheduler"} <= set(ended) and rounds[0] <= rounds[1]

    wait_until(whole, 20, "the lines of the request's end")
    return flare_logs(server, "--request", request)


def everything(server: Server) -> str:
    """All that the server wrote: every file, rotated ones too, and its terminal."""
    return server.log + "".join(path.read_text() for path in server.log_dir.glob("*.log*"))


def names(lines: list[dict[str, Any]], service: str) -> list[str]:
    return [line["event"] for line in lines if line["service"] == service]


def test_one_request_is_followed_through_three_logs(logged: Server) -> None:
    assert ask(logged, "followed", f"d1:4/2;say:{ANSWER}").status_code == 200
    lines = followed(logged, "followed")
    assert lines == sorted(lines, key=lambda line: str(line["timestamp"]))
    frontend = [name for name in names(lines, "frontend") if name.startswith("request.")]
    assert frontend == [
        "request.received",
        "request.tokenised",
        "request.submitted",
        "request.first_token",
        "request.finished",
    ]
    scheduler = names(lines, "scheduler")
    assert scheduler[:4] == ["request.received", "request.admitted", "request.prefilled", "request.round"]
    assert set(scheduler[3:-1]) == {"request.round"}
    assert scheduler[-1] == "request.finished"
    assert set(names(lines, "worker")) == {"round.replayed"}
    by_event = {line["event"]: line for line in lines if line["service"] == "scheduler"}
    admitted = by_event["request.admitted"]
    assert admitted["pages"] > 0
    assert admitted["waited"] >= 0
    assert admitted["slot"] >= 0


def test_each_round_tells_its_width_drafts_and_sources(logged: Server) -> None:
    answer = ask(logged, "rounds", f"d1:4/2;say:{ANSWER}").json()
    lines = followed(logged, "rounds")
    rounds = [line for line in lines if line["event"] == "request.round"]
    assert sum(line["emitted"] for line in rounds) == answer["usage"]["completion_tokens"]
    drafting = [line for line in rounds if line["offered"]]
    assert {source for line in drafting for source in line["sources"]} >= {"learned", "prompt"}
    assert all(line["accepted"] <= line["offered"] < line["width"] for line in drafting)
    assert all(line["emitted"] == line["accepted"] + 1 for line in drafting[:-1])
    counts = answer["metrics"]["speculative_decoding"]
    assert sum(line["accepted"] for line in rounds) == counts["num_accepted_draft_tokens"]
    replayed = {line["sequence"]: line for line in lines if line["event"] == "round.replayed"}
    for line in rounds:
        replay = replayed[line["sequence"]]
        assert replay["requests"] == ["rounds"]
        assert replay["device_ms"] > 0
        assert replay["kind"] in ("speculative", "prefill", "mixed")
        assert line["offered"] < replay["width"] or replay["kind"] == "prefill"


def test_a_stop_string_ends_a_request_like_any_other(logged: Server) -> None:
    answer = ask(logged, "halted", f"d1:4/2;say:{ANSWER}", stop=[" 0123"]).json()
    assert answer["choices"][0]["message"]["content"] == "quokkas"
    lines = followed(logged, "halted")
    [finished] = [line for line in lines if (line["service"], line["event"]) == ("scheduler", "request.finished")]
    assert finished["reason"] == answer["choices"][0]["finish_reason"] == "stop"
    assert finished["output_tokens"] == answer["usage"]["completion_tokens"]
    rounds = [line for line in lines if line["event"] == "request.round"]
    assert sum(line["emitted"] for line in rounds) >= finished["output_tokens"]
    assert finished["offered"] >= finished["accepted"] > 0
    assert finished["seconds"] > 0


def test_the_command_is_readable_and_follows_across_rotations_until_it_is_interrupted(logged: Server) -> None:
    assert ask(logged, "later-0", "say:a").status_code == 200
    command = (sys.executable, "-m", "compose.cli", "logs", "scheduler", "--follow", "-n", "1")
    environment = {**os.environ, "FLARE_LOG_DIR": str(logged.log_dir), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
    ) as follower:
        assert follower.stdout is not None
        try:
            shown = [follower.stdout.readline()]
            before, number = len(list(logged.log_dir.glob("scheduler.log.*"))), 0
            while len(list(logged.log_dir.glob("scheduler.log.*"))) < before + 2:
                number += 1
                assert number < 200
                assert ask(logged, f"later-{number}", f"say:{ANSWER}").status_code == 200
            ask(logged, "later", "say:the end")
            while not ("request.finished" in shown[-1] and "request=later " in shown[-1]):
                shown.append(follower.stdout.readline())
                assert shown[-1], "it goes on until it is told to end"
            follower.send_signal(signal.SIGINT)
            rest = follower.communicate(timeout=30)
        finally:
            follower.kill()
    assert (follower.returncode, *rest) == (0, "", "")
    assert "\x1b" not in "".join(shown)
    finished = [line.split("request=")[1].split()[0] for line in shown if "request.finished" in line]
    assert finished == [f"later-{index}" for index in range(number + 1)] + ["later"]


def test_no_text_of_prompts_and_answers_is_in_any_log(logged: Server) -> None:
    tell = f"say:{ANSWER} {SECRET}"
    assert ask(logged, "plain", tell).status_code == 200
    assert ask(logged, "stopped", tell, stop=[ANSWER[:7]]).status_code == 200
    assert ask(logged, "several", tell, n=3).status_code == 200
    refused = [
        ask(logged, "long", tell * 1000, max_tokens=5),
        ask(logged, "field", tell, **{SECRET: 1}),
        ask(logged, "model", tell, model=SECRET),
        ask(logged, "typed", tell, temperature=SECRET),
        ask(logged, "biased", tell, logit_bias={SECRET: 1}),
        ask(logged, "keyed", tell, chat_template_kwargs={SECRET: [SECRET]}),
    ]
    assert {response.status_code // 100 for response in refused} == {4}
    with logged.client() as client:
        posts = [
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": tell}], "stream": True}, 200),
            ("/v1/completions", {"prompt": tell, "max_tokens": 5}, 200),
            ("/v1/completions", {"prompt": [tell, tell], "max_tokens": 5, "stream": True}, 200),
            ("/v1/completions", {"prompt": tell, "max_tokens": SECRET}, 400),
            ("/tokenize", {"prompt": tell, "return_token_strs": True}, 200),
            ("/tokenize", {"prompt": tell, "add_special_tokens": SECRET}, 400),
            ("/detokenize", {"tokens": list(tell.encode())}, 200),
            ("/detokenize", {"tokens": [tell]}, 400),
        ]
        for path, body, status in posts:
            assert client.post(path, json=body).status_code == status, (path, body)
        for content in (f'{{"messages": "{SECRET}', SECRET, f'{{"messages": [{{"role": "{SECRET}"}}]}}'):
            assert client.post("/v1/chat/completions", content=content).status_code == 400
        assert client.get(f"/{SECRET}").status_code == 404
        assert client.post("/detokenize", json={"tokens": 1}, headers={"X-Request-Id": "last"}).status_code == 400
    wait_until(lambda: '"request":"last"' in (logged.log_dir / "frontend.log").read_text(), 10, "the last line")
    found = everything(logged)
    assert '"request":"typed"' in found, "the refusals are in the log"
    assert '"param":"add_special_tokens"' in found
    assert '"param":"tokens' in found
    assert SECRET not in found
    assert ANSWER[:7] not in found


def test_no_text_is_in_any_log_when_processes_die_over_it_and_requests_begin_again(tmp_path: Path) -> None:
    """Preempted, in flight while the worker crashes and while the scheduler is killed, and sent again."""
    with Server(make_core(tmp_path, pages=17), environment={"T1_FORWARD_SECONDS": "0.01"}) as server:
        server.wait_ready()
        with ThreadPoolExecutor(8) as pool:
            told = f"tell me of {SECRET}"
            # Four texts: equal ones would share their pages.
            long = [pool.submit(ask, server, f"long-{n}", f"{told}, part {n}", max_tokens=500) for n in range(4)]
            wait_until(lambda: '"request.preempted"' in server.log, 30, "too few pages for all")
            crash = pool.submit(ask, server, "crash", f"crash;say:{SECRET}")
            wait_until(lambda: '"worker.fault"' in server.log, 60, "the worker crashes")
            server.wait_ready()
            long += [pool.submit(ask, server, f"more-{number}", told, max_tokens=120) for number in range(6)]
            wait_until(lambda: _received(server, "more") == 6, 30, "they are in the scheduler")
            server.kill("scheduler")
            wait_until(lambda: '"request.sent_again"' in server.log, 30, "who waited is sent again")
            codes = {answer.result(120).status_code for answer in (*long, crash)}
        assert codes & {500, 503}, "some lost their state"
        found = everything(server)
        assert '"worker.failed"' in found
        assert '"exception"' in found, "a traceback is in the log"
    assert SECRET not in found


def _received(server: Server, prefix: str) -> int:
    """Requests of that name which the scheduler has."""
    lines = (server.log_dir / "scheduler.log").read_text().splitlines()
    return sum('"request.received"' in line and f'"request":"{prefix}' in line for line in lines)


def test_a_hostile_request_id_or_name_writes_no_line_of_its_own(logged: Server) -> None:
    for name in ('a"b', "x\x1b[31m", "\x9b2J"):
        with logged.client() as client:
            client.post(
                "/v1/chat/completions",
                json={"messages": [{"role": "user", "content": "say:a"}], "model": f"{name}\n{{}}"},
                headers=[(b"X-Request-Id", name.encode("latin-1"))],
            )
    for path in logged.log_dir.glob("*.log*"):
        for line in path.read_text().splitlines():
            assert line.isprintable()
            assert {"timestamp", "level", "event", "service", "pid"} <= json.loads(line).keys()


def test_files_are_private_rotated_and_bounded(logged: Server) -> None:
    assert logged.log_dir.stat().st_mode & 0o777 == 0o700
    sizes = {path.name: path.stat() for path in logged.log_dir.glob("*.log*")}
    assert {"frontend.log", "scheduler.log", "worker.log", "supervisor.log", "scheduler.log.1"} <= sizes.keys()
    assert {"scheduler.debug.log", "worker.debug.log"} <= sizes.keys()
    assert all(found.st_mode & 0o777 == 0o600 for found in sizes.values())
    assert all(found.st_size <= 20000 for found in sizes.values())
