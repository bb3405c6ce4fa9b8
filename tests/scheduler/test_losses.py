"""Peers that die, fall silent, send rubbish or speak for a predecessor: each costs what it must and nothing more."""

from __future__ import annotations

import os
import random
import time

import msgspec
import zmq
from structlog.testing import capture_logs

from shared.channel import RunDirectory
from shared.frames import FRAMES
from shared.messages.common import Sampling, new_instance
from shared.messages.scheduler import (
    Ack,
    Attached,
    Cancel,
    RoundDone,
    Safe,
    StoppedAt,
    Submit,
    WorkerBeat,
    WorkerFault,
)
from tests.scheduler.conftest import PATIENCE_S, Serve, Served
from tests.scheduler.cores import manifest, mixing, output


def ready(served: Served) -> bool:
    return any(f.status is not None and f.status.ready for f in served.frontends)


def test_a_dead_worker_fails_what_ran_at_once_and_the_queue_waits(serve: Serve) -> None:
    served = serve(manifest())
    worker = served.worker(mixing, round_s=0.01)
    frontend = served.frontend()
    running, queued = [f"r{n}" for n in range(4)], "r4"
    for name in (*running, queued):
        frontend.submit(name, [20] * 30, 200)
    frontend.wait(lambda: all(frontend.output.get(name) for name in running))
    worker.stop()
    died = time.monotonic()
    frontend.wait_over(*running)
    assert time.monotonic() - died < 3.0, "its connection tells, long before its silence would"
    assert {frontend.failed[name].code for name in running} == {"state_lost"}
    assert not ready(served)
    assert queued not in frontend.failed
    served.worker(mixing)
    frontend.wait_over(queued)
    assert frontend.output[queued] == output(mixing, [20] * 30, 200)
    frontend.wait(served.idle)


def test_a_silent_worker_is_given_up_and_comes_back_when_it_beats(serve: Serve) -> None:
    served = serve(manifest(), worker_timeout=0.5)
    worker = served.worker(mixing, round_s=0.01)
    frontend = served.frontend()
    frontend.submit("a", [20] * 30, 200)
    frontend.wait(lambda: "a" in frontend.output)
    worker.paused.set()
    frontend.wait_over("a", seconds=2)
    assert frontend.failed["a"].code == "state_lost"
    assert not ready(served)
    frontend.submit("b", [20] * 30, 20)
    worker.paused.clear()
    frontend.wait_over("b")
    assert frontend.output["b"] == output(mixing, [20] * 30, 20)


def test_a_worker_that_wants_to_go_finishes_what_it_has_and_the_queue_waits(serve: Serve) -> None:
    served = serve(manifest())
    worker = served.worker(mixing, round_s=0.01)
    frontend = served.frontend()
    running, queued = [f"r{n}" for n in range(4)], "r4"
    for name in (*running, queued):
        frontend.submit(name, [20] * 30, 100)
    frontend.wait(lambda: all(frontend.output.get(name) for name in running))
    worker.draining.set()
    frontend.wait(lambda: frontend.status is not None and frontend.status.reason == "the worker is draining")
    frontend.wait_over(*running)
    for name in running:
        assert frontend.output[name] == output(mixing, [20] * 30, 100)
    frontend.wait(lambda: not worker.alive)
    assert queued not in frontend.output
    assert queued not in frontend.failed
    served.worker(mixing)
    frontend.wait_over(queued)
    assert frontend.output[queued] == output(mixing, [20] * 30, 100)
    frontend.wait(served.idle)


def test_when_scheduler_and_worker_both_go_the_queue_is_served_first(serve: Serve) -> None:
    served = serve(manifest())
    worker = served.worker(mixing, round_s=0.01)
    frontend = served.frontend()
    names = [f"r{n}" for n in range(6)]
    for name in names:
        frontend.submit(name, [20] * 30, 100)
    frontend.wait(lambda: "r0" in frontend.output)
    worker.draining.set()
    time.sleep(0.2)
    served.loop.stop()
    frontend.wait_over(*names)
    assert set(frontend.finished) == set(names)
    assert served.join() == 0


def test_a_worker_fault_is_told_and_a_successor_serves(serve: Serve) -> None:
    served = serve(manifest())
    worker = served.worker(mixing, round_s=0.01)
    frontend = served.frontend()
    frontend.submit("a", [20] * 30, 200)
    frontend.wait(lambda: "a" in frontend.output)
    worker.say(WorkerFault(instance=worker.instance, code="internal_error", message="no more"))
    frontend.wait_over("a", seconds=1)
    assert frontend.failed["a"].code == "state_lost"
    served.worker(mixing)
    frontend.submit("b", [20] * 30, 20)
    frontend.wait_over("b")
    assert "b" in frontend.finished


def test_messages_of_another_instance_are_ignored(serve: Serve) -> None:
    served = serve(manifest())
    worker = served.worker(mixing, round_s=0.002)
    frontend = served.frontend()
    frontend.submit("a", [20] * 30, 100)
    frontend.wait(lambda: "a" in frontend.output)
    other = new_instance()
    worker.say(RoundDone(instance=other, sequence=worker.sequence, graph=0, device_ns=1, idle_ns=1))
    worker.say(RoundDone(instance=worker.instance, sequence=10**9, graph=0, device_ns=1, idle_ns=1))
    worker.say(Attached(instance=worker.instance, scheduler=other, sequence=3))
    worker.say(WorkerFault(instance=other, code="internal_error", message="not mine"))
    frontend.send(Cancel(instance=other, request="a"))
    frontend.send(StoppedAt(instance=frontend.instance, request="a", epoch=1, visible=1))
    for upto in (10**12, -5):
        safe = Safe(request="a", epoch=frontend.deltas[-1].epoch, upto=upto)
        frontend.send(Ack(instance=frontend.instance, safe=(safe,)))
    frontend.wait_over("a")
    assert frontend.output["a"] == output(mixing, [20] * 30, 100)
    assert served.tallies.stale_records == 1


def test_only_the_answer_to_the_last_handshake_counts(serve: Serve) -> None:
    """A worker that says Hello twice is attached twice and empties its slots twice: rounds wait for the second."""
    served = serve(manifest())
    worker = served.worker(mixing, round_s=0.002)
    frontend = served.frontend()
    for name in ("a", "b", "c"):
        for _ in range(3):
            worker.say(worker.hello())
        frontend.submit(name, [20] * 30, 20)
        frontend.wait_over(name, seconds=10)
        assert name in frontend.finished or frontend.failed[name].code == "state_lost"
        frontend.submit(f"{name} again", [20] * 30, 20)
        frontend.wait_over(f"{name} again", seconds=10)
        assert frontend.output[f"{name} again"] == output(mixing, [20] * 30, 20)


def test_a_completion_frame_that_is_torn_fails_its_requests_only(serve: Serve) -> None:
    served = serve(manifest())
    worker = served.worker(mixing, round_s=0.002)
    frontend = served.frontend()
    frontend.submit("a", [20] * 30, 300)
    frontend.wait(lambda: len(frontend.output.get("a", [])) > 5)
    deadline = time.monotonic() + PATIENCE_S
    while served.tallies.stale_records == 0 and time.monotonic() < deadline:
        worker.completions[worker.sequence % FRAMES].tail[0] = -5
        worker.completions[(worker.sequence + 1) % FRAMES].tail[0] = -5
    frontend.wait_over("a")
    assert frontend.failed["a"].code == "round_failed"
    frontend.submit("b", [20] * 30, 20)
    frontend.wait_over("b")
    assert frontend.output["b"] == output(mixing, [20] * 30, 20)


def test_a_worker_of_another_core_is_refused_and_does_no_harm(serve: Serve) -> None:
    served = serve(manifest())
    served.worker(mixing, round_s=0.005)
    frontend = served.frontend()
    frontend.submit("a", [20] * 30, 60)
    frontend.wait(lambda: "a" in frontend.output)
    served.digest = "0" * 64
    served.worker(mixing)
    frontend.wait_over("a")
    assert "a" in frontend.finished


def test_a_successor_takes_over_from_a_worker_that_still_talks(serve: Serve) -> None:
    served = serve(manifest())
    first = served.worker(mixing, round_s=0.01)
    frontend = served.frontend()
    frontend.submit("a", [20] * 30, 200)
    frontend.wait(lambda: "a" in frontend.output)
    served.worker(mixing)
    frontend.wait_over("a")
    assert frontend.failed["a"].code == "state_lost"
    frontend.submit("b", [20] * 30, 20)
    frontend.wait_over("b")
    assert frontend.output["b"] == output(mixing, [20] * 30, 20)
    first.say(WorkerBeat(instance=first.instance, sequence=0))
    frontend.submit("c", [20] * 30, 20)
    frontend.wait_over("c")
    assert "c" in frontend.finished


def test_a_dead_frontend_gives_its_slots_to_others(serve: Serve) -> None:
    served = serve(manifest(concurrency=2, pages=20))
    served.worker(mixing, round_s=0.005)
    doomed, other = served.frontend(), served.frontend()
    for number in range(4):
        doomed.submit(f"r{number}", [20] * 30, 400)
    doomed.wait(lambda: "r1" in doomed.output)
    other.submit("b", [20] * 30, 20)
    doomed.close()
    other.wait_over("b", seconds=2)
    assert other.output["b"] == output(mixing, [20] * 30, 20)
    other.wait(served.idle)
    assert served.tallies.finished["cancelled"] == 4


def test_a_thousand_rubbish_frames_disturb_nobody(serve: Serve) -> None:
    """B63: bytes, truncated and mutated messages, many parts, on both sockets, while requests run."""
    served = serve(manifest())
    served.worker(mixing, round_s=0.001)
    frontend = served.frontend()
    frontend.submit("a", [20] * 30, 200)
    frontend.wait(lambda: "a" in frontend.output)
    rng = random.Random(63)
    submit = Submit(instance=1, request="x", prompt=(5, 6), sampling=Sampling(), max_tokens=5, end_ids=())
    samples = [
        msgspec.msgpack.encode(message)
        for message in (
            submit,
            WorkerBeat(instance=1, sequence=1),
            RoundDone(instance=1, sequence=8, graph=1, device_ns=1, idle_ns=1),
            served.workers[0].hello(),
        )
    ]
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    run = RunDirectory(served.run_dir)
    for address in (run.frontends, run.workers):
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 1000)
        socket.connect(address)
        for number in range(500):
            data = bytearray(rng.choice(samples)) if number % 2 else bytearray(os.urandom(rng.randrange(200)))
            for _ in range(rng.randrange(1, 4)):
                if data:
                    data[rng.randrange(len(data))] = rng.randrange(256)
            # A whole Hello is a worker: only broken ones are rubbish.
            parts = [bytes(data[: rng.randrange(len(data) + 1)])] * rng.choice((1, 1, 1, 3))
            socket.send_multipart(parts)
        socket.close()
    context.term()
    frontend.submit("b", [20] * 30, 50)
    frontend.wait_over("a", "b")
    assert frontend.output["a"] == output(mixing, [20] * 30, 200)
    assert frontend.output["b"] == output(mixing, [20] * 30, 50)
    assert served.loop.gauges().refused > 500


def test_a_frontend_that_leaves_nothing_behind_is_no_fault(serve: Serve) -> None:
    """As after its drain; one that takes running requests along is."""
    with capture_logs() as events:
        served = serve(manifest())
        served.worker(mixing, round_s=0.01)
        idle, busy, stays = (served.frontend() for _ in range(3))
        for frontend in (idle, busy, stays):
            frontend.wait(lambda: ready(served))
        idle.submit("over", [20] * 30, 3)
        idle.wait_over("over")
        busy.submit("runs", [20] * 30, 300)
        busy.wait(lambda: "runs" in busy.output)
        for frontend in (idle, busy):
            frontend.close()
        stays.wait(lambda: len([e for e in events if e["event"] in ("frontend.left", "frontend.lost")]) == 2)
    told = {e["event"]: (e["log_level"], e["frontend"]) for e in events if e["event"].startswith("frontend.l")}
    assert told == {"frontend.left": ("info", idle.instance), "frontend.lost": ("warning", busy.instance)}
    assert next(e["requests"] for e in events if e["event"] == "frontend.lost") == 1
