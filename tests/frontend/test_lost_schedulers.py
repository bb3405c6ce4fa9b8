"""Schedulers that die, fall silent or say what cannot be: all are told (architecture.md, section 7)."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from shared.messages.common import new_instance
from shared.messages.frontend import Delta, Tokens
from shared.messages.scheduler import Ack, Cancel, Submit
from tests.frontend.child import deployed, unready
from tests.frontend.client import MESSAGES, PATH
from tests.frontend.conftest import Deployment, deploy, wait_ready
from tests.frontend.scripted_scheduler import SLOW, SOON_S, STUCK, Script, ScriptedScheduler
from tests.frontend.small_core import END


def test_scheduler_death_and_return(core: tuple[Path, str], tmp_path: Path) -> None:
    with deployed(core, tmp_path) as child:
        child.scheduler.script = STUCK
        whole: list[httpx.Response] = []
        waiting = threading.Thread(target=lambda: whole.append(child.chat.post()))
        waiting.start()
        with child.chat.streaming() as events:
            answer = next(events)
            child.scheduler.wait_for(Ack, 2)
            died = time.monotonic()
            child.scheduler.close()
            for _ in events:
                pass
        assert time.monotonic() - died < 5, "at once, and not when it has been silent for long"
        assert answer.text == "he"
        assert answer.error is not None
        assert answer.error["code"] == "state_lost"
        assert not answer.done
        waiting.join(SOON_S)
        assert (whole[0].status_code, whole[0].json()["error"]["code"]) == (503, "state_lost")
        assert child.chat.client.get("/ready").status_code == 503
        assert child.chat.client.get("/health").status_code == 200
        assert child.chat.post().status_code == 503
        child.scheduler = ScriptedScheduler(child.run_dir, child.digest)
        try:
            wait_ready(child.chat.client)
            child.scheduler.script = Script((*b"back", END))
            assert child.chat.whole().text == "back"
        finally:
            child.scheduler.close()


def test_who_waits_is_sent_to_the_next_scheduler_but_only_once(core: tuple[Path, str], tmp_path: Path) -> None:
    waits = Script((), hang_after=0)
    with deployed(core, tmp_path) as child, ThreadPoolExecutor(3) as pool:
        child.scheduler.script = waits
        served = pool.submit(child.chat.whole)
        [first] = child.scheduler.wait_for(Submit)
        child.scheduler.close()
        child.scheduler = ScriptedScheduler(child.run_dir, child.digest, Script((*b"served", END)))
        assert served.result(SOON_S).text == "served"
        [second] = child.scheduler.of(Submit)
        assert (second.request, second.prompt, second.sampling) == (first.request, first.prompt, first.sampling)
        child.scheduler.script = waits
        poison = pool.submit(child.chat.post)
        child.scheduler.wait_for(Submit, 2)
        for again in (True, False):
            child.scheduler.close()
            child.scheduler = ScriptedScheduler(child.run_dir, child.digest, waits)
            if again:
                child.scheduler.wait_for(Submit)
        assert poison.result(SOON_S).json()["error"]["code"] == "state_lost"
        child.scheduler.script = Script((*b"on", END))
        wait_ready(child.chat.client)
        assert child.chat.whole().text == "on"


def test_who_waits_may_leave_while_there_is_no_scheduler(core: tuple[Path, str], tmp_path: Path) -> None:
    with deployed(core, tmp_path) as child:
        child.scheduler.script = Script((), hang_after=0)
        with ThreadPoolExecutor(1) as pool:
            leaving = pool.submit(child.chat.client.post, PATH, json={"messages": MESSAGES}, timeout=0.6)
            child.scheduler.wait_for(Submit)
            child.scheduler.close()
            assert isinstance(leaving.exception(SOON_S), httpx.ReadTimeout)
        child.scheduler = ScriptedScheduler(child.run_dir, child.digest, Script((*b"on", END)))
        wait_ready(child.chat.client)
        assert child.chat.whole().text == "on"
        assert len(child.scheduler.of(Submit)) == 1, "nobody waits for the other answer any more"


def test_a_silent_scheduler_is_given_up_and_welcomed_again(core: tuple[Path, str], tmp_path: Path) -> None:
    with deploy(core, tmp_path, scheduler_timeout=1.0) as served:
        served.scheduler.script = STUCK
        with served.chat.streaming() as events:
            answer = next(events)
            served.scheduler.silent = True
            began = time.monotonic()
            for _ in events:
                pass
        assert answer.error is not None
        assert answer.error["code"] == "state_lost"
        assert time.monotonic() - began < 8, "10 s are the default"
        served.scheduler.silent = False
        wait_ready(served.chat.client)
        [cancel] = served.scheduler.wait_for(Cancel)
        assert cancel.request == served.scheduler.of(Submit)[0].request
        served.scheduler.script = Script((*b"on", END))
        assert served.chat.whole().text == "on"


def test_readiness_follows_scheduler_and_worker(core: tuple[Path, str], tmp_path: Path) -> None:
    with deployed(core, tmp_path) as child:
        child.scheduler.tell(ready=False)
        assert unready(child) == "no worker"
        child.scheduler.script = Script((*b"queued", END))
        timer = threading.Timer(0.3, child.scheduler.tell, [True])
        timer.start()
        assert child.chat.whole().text == "queued"
        child.scheduler.silent = True
        assert "silent" in unready(child)


def test_a_scheduler_with_another_core(core: tuple[Path, str], tmp_path: Path) -> None:
    with deployed(core, tmp_path) as child:
        child.scheduler.close()
        child.scheduler = ScriptedScheduler(child.run_dir, "another digest")
        deadline = time.monotonic() + SOON_S
        while "different cores" not in (text := child.chat.client.get("/ready").text):
            assert time.monotonic() < deadline, text
            time.sleep(0.02)
        assert child.chat.post().status_code == 503
        child.scheduler.close()


def test_other_instances_are_ignored(served: Deployment) -> None:
    served.scheduler.script = SLOW
    with served.chat.streaming(max_tokens=20) as events:
        answer = next(events)
        [submit] = served.scheduler.of(Submit)
        stale = Delta(request=submit.request, epoch=1, start=0, tokens=tuple(b"STALE"), finish="stop")
        served.scheduler.send_raw(Tokens(instance=new_instance(), sequence=1, deltas=(stale,)))
        for _ in events:
            pass
    assert answer.text == ("hello" * 4)
    assert answer.finish == "length"


def test_a_breach_costs_one_request(served: Deployment) -> None:
    served.scheduler.script = STUCK
    with served.chat.streaming() as events:
        answer = next(events)
        [submit] = served.scheduler.of(Submit)
        gap = Delta(request=submit.request, epoch=1, start=100, tokens=(65,))
        served.scheduler.send_raw(Tokens(instance=served.scheduler.instance, sequence=1, deltas=(gap,)))
        for _ in events:
            pass
    assert answer.error is not None
    assert answer.error["code"] == "round_failed"
    assert served.scheduler.wait_for(Cancel)[0].request == submit.request
