"""What the page says and does when something is wrong: refusals, waiting, broken streams. No case is left silent."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import expect

from services.frontend.page.assets import assets
from shared.errors import Overloaded, RoundFailed, Unavailable
from shared.messages.frontend import Failed
from shared.messages.scheduler import Cancel, Submit
from tests.frontend.conftest import Deployment, deploy
from tests.frontend.scripted_scheduler import Script
from tests.frontend.small_core import END, tokens_of
from tests.page.conftest import Core, Open, url_of

ANSWER = Script((*tokens_of("fine"), END))
KEY = "sk-page-test"


def failure(code: str) -> Script:
    return Script((), failure=(code, "as the script says"))


def test_a_server_without_a_worker_is_waited_for(scripted: Deployment, visit: Open) -> None:
    scripted.scheduler.script = failure(Unavailable.code)
    scripted.scheduler.tell(False)
    seen = visit(url_of(scripted), refusals=(503,))
    expect(seen.page.locator("#model")).to_contain_text("no worker")
    seen.ask("hi")
    expect(seen.note).to_have_text("The server is not ready: no worker. Waiting…")
    scripted.scheduler.script = ANSWER
    scripted.scheduler.tell(True)
    expect(seen.answer).to_have_text("fine")
    expect(seen.note).to_be_hidden()
    expect(seen.page.locator("#model")).to_have_text("small")


def test_a_busy_server_is_asked_again_and_waiting_can_be_stopped(scripted: Deployment, visit: Open) -> None:
    scripted.scheduler.script = failure(Overloaded.code)
    seen = visit(url_of(scripted), refusals=(429,))
    seen.ask("hi")
    expect(seen.note).to_have_text("The server is busy. Trying again in 1 s…")
    scripted.scheduler.script = ANSWER
    expect(seen.answer).to_have_text("fine")
    scripted.scheduler.script = failure(Overloaded.code)
    seen.ask("once more")
    expect(seen.note).to_contain_text("busy")
    seen.page.keyboard.press("Escape")
    expect(seen.note).to_have_text("Stopped.")
    tried = len(scripted.scheduler.of(Submit))
    seen.page.wait_for_timeout(1300)
    assert len(scripted.scheduler.of(Submit)) == tried


def test_an_error_in_the_stream_is_shown_and_the_text_stays(scripted: Deployment, visit: Open) -> None:
    scripted.scheduler.script = Script(tuple(b"half an answer"), (7,), hang_after=2)
    seen = visit(url_of(scripted))
    seen.ask("hi")
    expect(seen.answer).to_have_text("half an answer")
    request = scripted.scheduler.of(Submit)[-1].request
    scripted.scheduler.send_raw(
        Failed(instance=scripted.scheduler.instance, request=request, code=RoundFailed.code, message="the round failed")
    )
    expect(seen.note).to_have_text("The model failed in the middle of this answer. Try again.")
    expect(seen.page.locator(".answer .detail p")).to_have_text("the round failed")
    expect(seen.note).to_have_attribute("role", "alert")
    assert seen.answer.text_content() == "half an answer"
    scripted.scheduler.script = ANSWER
    seen.page.get_by_role("button", name="Try again").click()
    expect(seen.answer).to_have_text("fine")


def test_a_refused_request_says_why_and_its_question_is_not_sent_again(scripted: Deployment, visit: Open) -> None:
    seen = visit(url_of(scripted), refusals=(400,))
    seen.ask("refuse me")
    expect(seen.note).to_contain_text("cannot answer this conversation")
    expect(seen.page.locator(".answer .detail p")).to_contain_text("These roles must alternate")
    scripted.scheduler.script = ANSWER
    with seen.page.expect_request("**/v1/chat/completions") as request:
        assert seen.said("something else") == "fine"
    assert [turn["content"] for turn in json.loads(request.value.post_data or "")["messages"]] == ["something else"]
    expect(seen.page.locator(".question").first).to_contain_text("Not answered, not sent again")


@pytest.fixture
def locked(small_core: Core, tmp_path: Path) -> Iterator[Deployment]:
    """A server that wants a key. The folder is short, because a socket's path must be."""
    with deploy(small_core, tmp_path, api_keys=(KEY,)) as running:
        running.scheduler.script = ANSWER
        yield running


def test_a_key_is_asked_for_and_kept_in_the_tab_only(locked: Deployment, visit: Open) -> None:
    seen = visit(url_of(locked), refusals=(401,))
    field = seen.page.get_by_label("This server asks for an API key.")
    expect(field).to_be_focused()
    field.fill("wrong")
    field.press("Enter")
    expect(seen.page.locator("#key-note")).to_have_text("The server did not accept that key.")
    expect(field).to_be_focused()
    field.fill(KEY)
    field.press("Enter")
    expect(seen.page.locator("#model")).to_have_text("small")
    expect(field).to_be_hidden()
    assert seen.said("hi") == "fine"
    assert KEY not in seen.page.evaluate("JSON.stringify(localStorage) + document.cookie + document.body.innerText")
    seen.page.reload()
    assert seen.said("hi") == "fine"


def test_a_question_that_lacked_a_key_is_asked_once_there_is_one(locked: Deployment, visit: Open) -> None:
    seen = visit(url_of(locked), refusals=(401,))
    seen.ask("hi")
    expect(seen.note).to_contain_text("API key")
    seen.page.get_by_label("This server asks for an API key.").fill(KEY)
    seen.page.get_by_role("button", name="Use key").click()
    expect(seen.answer).to_have_text("fine")
    expect(seen.page.locator(".question")).to_have_count(1)


@contextmanager
def breaking(*parts: bytes) -> Iterator[str]:
    """The page on a server that sends these parts as its answer's stream and drops the connection."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            path = lines.readline().split(b" ")[1].decode()
            length = 0
            while line := lines.readline().strip().lower():
                length = int(line.partition(b":")[2]) if line.startswith(b"content-length:") else length
            lines.read(length)  # a socket that is closed with something unread resets its peer
            head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: "
            if path.endswith("/completions"):
                connection.sendall(head + b"text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
                for part in parts:
                    connection.sendall(b"%x\r\n%s\r\n" % (len(part), part))
                time.sleep(0.2)  # or the browser sees the end before it has read
            elif path in ("/ready", "/v1/models"):
                connection.sendall(head + b'application/json\r\n\r\n{"data":[{"id":"broken"}]}')
            else:
                asset = assets()[path.rpartition("/")[2] or "index.html"]
                connection.sendall(head + asset.media_type.encode() + b"\r\n\r\n" + asset.body)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


PIECE = b'data: {"choices":[{"delta":{"content":"torn"},"finish_reason":null}]}\n\n'


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ((PIECE[:20], PIECE[20:]), "The connection broke before the answer was complete."),
        ((PIECE, b""), "The connection ended before the answer was complete."),
        ((PIECE, b"data: {not json\n\n"), "The connection broke before the answer was complete."),
    ],
    ids=["dropped", "ended-early", "nonsense"],
)
def test_a_stream_that_breaks_is_no_answer(parts: tuple[bytes, ...], said: str, visit: Open) -> None:
    with breaking(*parts) as url:
        seen = visit(url)
        seen.ask("hi")
        expect(seen.note).to_have_text(said)
        assert seen.answer.text_content() == "torn"
        expect(seen.page.locator("#count")).to_have_text("1")
        seen.faults = [fault for fault in seen.faults if "ERR_INCOMPLETE_CHUNKED_ENCODING" not in fault]


def test_a_server_that_is_gone_is_said_to_be(scripted: Deployment, visit: Open) -> None:
    seen = visit(url_of(scripted))
    seen.page.route("**/v1/chat/completions", lambda route: route.abort("connectionrefused"))
    seen.ask("hi")
    expect(seen.note).to_have_text("The server cannot be reached.")
    seen.page.unroute("**/v1/chat/completions")
    scripted.scheduler.script = ANSWER
    seen.page.get_by_role("button", name="Try again").click()
    expect(seen.answer).to_have_text("fine")
    seen.faults = [fault for fault in seen.faults if "ERR_CONNECTION_REFUSED" not in fault]


INTRUDE = """async (elsewhere) => {
  const script = document.createElement("script");
  const tries = [
    () => { script.text = "document.title = 'inline'"; document.head.append(script); },
    () => { document.body.innerHTML = "<b>markup</b>"; },
    () => fetch(elsewhere),
  ];
  const outcomes = [];
  for (const attempt of tries) {
    try { await attempt(); outcomes.push("done"); } catch { outcomes.push("refused"); }
  }
  return outcomes;
}"""


def test_the_policy_refuses_what_does_not_belong_and_these_tests_would_see_it(
    scripted: Deployment, visit: Open
) -> None:
    seen = visit(url_of(scripted))
    assert seen.page.evaluate(INTRUDE, "http://127.0.0.2:9/") == ["refused"] * 3
    assert seen.page.title() == "Flare"
    expect(seen.question).to_be_visible()
    assert [fault for fault in seen.faults if "Content Security Policy" in fault]
    seen.faults.clear()


def test_leaving_the_page_cancels_the_request(scripted: Deployment, visit: Open) -> None:
    scripted.scheduler.script = Script(tuple(b"slow answer " * 40), pause_s=0.02)
    seen = visit(url_of(scripted))
    seen.ask("hi")
    expect(seen.answer).to_contain_text("slow")
    seen.page.goto("about:blank")
    scripted.scheduler.wait_for(Cancel)
