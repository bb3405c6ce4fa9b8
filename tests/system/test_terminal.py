"""`flare status` and `flare chat` against a live server, as a person at a terminal and as a pipe use them."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.fixtures.harness import Server, wait_until
from tests.fixtures.scripted.vocabulary import encode
from tests.system.test_logs import SECRET, ask, flare_logs, followed, names

CONTROLLED = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, sys.argv[1:])
"""
"""Makes the terminal at stdin the controlling one, so that Ctrl-C in it is a signal."""
CLI = (sys.executable, "-m", "compose.cli")


def run(
    server: Server, *arguments: str, question: str | None = None, runtime: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """A command of the server's user, or of one with another folder of run directories."""
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(runtime or server.run_dir.parent), "COLUMNS": "150"}
    return subprocess.run(
        (*CLI, *arguments), input=question, capture_output=True, text=True, env=environment, timeout=60, check=False
    )


def test_status_shows_a_live_server(server: Server) -> None:
    answer = server.chat("d1:4/2;say:hello hello hello hello hello", max_tokens=200)
    drafts = answer["metrics"]["speculative_decoding"]["by_source"]
    done = run(server, "status", "--once", "--interval", "0.2")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {words[0]: words for line in done.stdout.splitlines() if (words := re.findall(r"[^\s│┃]+", line))}
    for service in ("frontend", "scheduler", "worker"):
        assert rows[service][1] == str(server.process(service).pid)
        assert rows[service][2] == "ready"
    assert drafts["learned"]["num_draft_tokens"] > 0
    assert rows["learned"][1].endswith("%")
    assert "0 of 4" in re.sub(r"\s+", " ", next(line for line in done.stdout.splitlines() if "running" in line))
    assert {"rounds/s", "tokens/s", "acceptance", "queued", "pages", "frames"} <= rows.keys()


def test_status_by_url_knows_ones_own_server(server: Server) -> None:
    for choice in (("--url", f"{server.url.removeprefix('http://')}/v1/"), ("--port", server.url.rpartition(":")[2])):
        done = run(server, "status", "--once", "--interval", "0.2", *choice)
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.search(r"worker.*ready", done.stdout)


def test_status_by_url_of_another_server_shows_what_the_frontend_tells(server: Server, tmp_path: Path) -> None:
    done = run(server, "status", "--once", "--interval", "0.2", "--url", server.url, runtime=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"frontend.*ready", done.stdout)
    assert re.search(r"worker.*unknown", done.stdout)


def test_one_question_through_a_pipe_is_one_answer(server: Server) -> None:
    done = run(server, "chat", "--temperature", "0", "--max-tokens", "50", question="say:a plain answer\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "a plain answer\n", "")


def test_the_greeting_names_commands_that_find_the_server_and_its_logs(server: Server) -> None:
    wait_until(lambda: "chat page" in server.log, 30, "the greeting")
    assert f"The chat page is {server.url}/ in a browser" in server.log
    commands = [shlex.split(found[1]) for found in re.finditer(r"^  (\S.* (?:chat|logs --follow))$", server.log, re.M)]
    assert [words[-1] for words in commands] == ["chat", "--follow"]
    for *words, _ in commands:
        assert subprocess.run((*words, "--help"), capture_output=True, check=False).returncode == 0
    done = run(server, "logs", "supervisor", "--port", server.url.rpartition(":")[2])
    started = [line for line in done.stdout.splitlines() if "supervisor.started" in line]
    assert f"child_pid={server.process('worker').pid}" in started[-1]


def test_a_question_that_is_refused_is_an_exit_code(server: Server) -> None:
    done = run(server, "chat", "--max-tokens", "0", question="say:x")
    assert done.returncode == 1
    assert "max_tokens" in done.stderr
    assert done.stdout == ""
    assert run(server, "chat", question="").returncode == 1
    assert "no answer" in run(server, "chat", "--url", "127.0.0.1:1/v1", question="say:x").stderr


class Terminal:
    """A pseudo-terminal with `flare chat` in it."""

    def __init__(self, master: int, process: subprocess.Popen[bytes]) -> None:
        self._master = master
        self.process = process
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def press_until(self, key: str, pattern: str) -> None:
        """Presses a key again until something is shown: a signal that comes between Python's prompt and its wait for
        a key is seen only with the next key.
        """
        for _ in range(5):
            self.type(key)
            with suppress(AssertionError):
                self.wait(pattern, 3)
                return
        raise AssertionError(self.seen)

    def wait(self, pattern: str, seconds: float = 60) -> str:
        """What was shown until the pattern was, which counts from the last wait."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.seen, re.DOTALL)):
            assert time.monotonic() < deadline, self.seen
            if select.select([self._master], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self._master, 65536).decode(errors="replace")
                except OSError:  # the other end is closed
                    break
        assert found or re.search(pattern, self.seen, re.DOTALL), self.seen
        shown, self.seen = self.seen, ""
        return shown


@contextmanager
def terminal(server: Server, state: Path, *arguments: str) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    environment = {**os.environ, "XDG_STATE_HOME": str(state), "TERM": "dumb"}
    process = subprocess.Popen(
        (sys.executable, "-c", CONTROLLED, *CLI, "chat", "--url", server.url, "--temperature", "0", *arguments),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment,
        start_new_session=True,
    )
    os.close(slave)
    try:
        yield Terminal(master, process)
    finally:
        process.kill()
        process.wait()
        os.close(master)


def test_a_conversation_in_a_terminal(server: Server, tmp_path: Path) -> None:
    with terminal(server, tmp_path, "--max-tokens", "100") as chat:
        chat.wait("> $")
        chat.type("d1:4/2;say:one two three one two three\n")
        shown = chat.wait(r"\[\d+ tokens.*\].*> $")
        assert "one two three one two three" in shown
        assert re.search(r"\[\d+ tokens, \d+\.\d tokens/s, \d+% of \d+ drafts accepted\]", shown)
        chat.type("/reset\n")
        chat.wait(r"\[forgotten\].*> $")
        chat.type("/what\n")
        chat.wait(r"/quit.*> $")
        chat.type(f"ids:{','.join(map(str, encode(chr(27) + '[31mred')))}\n")
        assert "\N{REPLACEMENT CHARACTER}[31mred" in chat.wait(r"\[\d+ tokens.*> $"), "answers do not steer terminals"
        chat.type("/quit\n")
        assert chat.process.wait(30) == 0
    history = tmp_path / "flare" / "chat_history"
    assert "say:one two three" in history.read_text()
    assert history.stat().st_mode & 0o777 == 0o600


@pytest.fixture(scope="module")
def own(core: Path) -> Iterator[Server]:
    """A server to stop and kill, slow enough to be caught in the middle of an answer, that logs content."""
    with Server(core, ("--log-content",), environment={"T1_FORWARD_SECONDS": "0.02"}) as running:
        running.wait_ready()
        yield running


def test_ctrl_c_stops_the_answer_and_not_the_program(own: Server, tmp_path: Path) -> None:
    with terminal(own, tmp_path) as chat:
        chat.wait("> $")
        chat.type("say:" + "abcdefghij" * 40 + "\n")
        chat.wait("\nabc")
        chat.type("\x03")
        chat.wait(r"\[stopped\].*> $")
        wait_until(lambda: '"request.abandoned"' in own.log, 10, "the server stops it too")
        chat.type("say:still here\n")
        assert "still here" in chat.wait(r"\[\d+ tokens.*> $")
        chat.press_until("\x03", "> $")
        chat.type("\x04")
        assert chat.process.wait(30) == 0


def test_an_answer_that_breaks_off_stays_in_the_conversation(own: Server, tmp_path: Path) -> None:
    own.wait_ready()
    with terminal(own, tmp_path) as chat:
        chat.wait("> $")
        chat.type("say:" + "klmnopqrst" * 40 + "\n")
        chat.wait("\nklmn")
        own.kill("worker")
        chat.wait(r"\[the answer broke off: its text stays in the conversation.*> $")
        own.wait_ready()
        chat.type("say:afterwards\n")
        chat.wait(r"\[\d+ tokens.*> $")
    told = [line["text"] for line in flare_logs(own, "frontend") if line["event"] == "request.prompt"]
    assert told[-1].count("say:") == 2, "both questions"
    assert 40 < told[-1].count("klm") < 80, "and what came of the answer"


def test_status_shows_a_service_that_is_down(own: Server) -> None:
    own.signal("worker", signal.SIGSTOP)
    try:
        done = run(own, "status", "--once", "--interval", "0.1")
    finally:
        own.signal("worker", signal.SIGCONT)
    assert done.returncode == 1
    assert re.search(r"frontend.*ready", done.stdout)
    assert re.search(r"worker.*down", done.stdout)
    assert "Traceback" not in done.stderr


def test_a_restarted_service_goes_on_in_its_file_and_content_is_told_if_asked_for(own: Server) -> None:
    own.wait_ready()
    assert ask(own, "asked", f"say:{SECRET}").status_code == 200
    wait_until(lambda: "round.replayed" in names(flare_logs(own, "--request", "asked"), "worker"), 10, "its rounds")
    pid = own.kill("worker")
    wait_until(lambda: not own.ready(), 20, "the loss is noticed")
    own.wait_ready()
    assert ask(own, "again", "say:b").status_code == 200
    followed(own, "again")
    texts = {line["event"]: line["text"] for line in flare_logs(own, "--request", "asked") if "text" in line}
    assert f"say:{SECRET}" in texts["request.prompt"]
    assert texts["request.output"] == SECRET
    lines = flare_logs(own, "worker", "--level", "debug", "-n", "100000")
    replays = {line["pid"] for line in lines if line["event"] == "round.replayed"}
    assert {pid, own.process("worker").pid} <= replays
