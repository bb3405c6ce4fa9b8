"""The scheduler over real sockets and shared memory: whole requests, endings, overload, shutdown."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from services.scheduler.config import SchedulerConfig
from services.scheduler.opening import open_core
from shared.errors import ManifestError, ProcessError
from shared.messages.scheduler import FrontendPing
from tests.scheduler.conftest import BareFrontend, Serve
from tests.scheduler.cores import END, cycling, manifest, mixing, output, write_core


@pytest.mark.parametrize("options", [{}, {"draft_tokens": 0}, {"draft_tokens": 3}, {"deterministic": True}])
def test_output_is_the_targets_with_any_policy(serve: Serve, options: dict[str, object]) -> None:
    served = serve(manifest(), **options)
    worker = served.worker(cycling)
    frontend = served.frontend()
    prompts = {f"r{n}": [10 + (n + i) % 12 for i in range(5 + 37 * n)] for n in range(6)}
    for name, prompt in prompts.items():
        frontend.submit(name, prompt, 60)
    frontend.wait_over(*prompts)
    for name, prompt in prompts.items():
        assert frontend.output[name] == output(cycling, prompt, 60)
        assert frontend.finished[name] == "length"
    frontend.wait(served.idle)
    kinds = {kind for kind, _ in worker.rounds}
    assert ("decode" in kinds) == (options.get("draft_tokens") == 0)
    assert ("speculative" in kinds) == (options.get("draft_tokens") != 0)
    widest = max(tokens for kind, tokens in worker.rounds if kind in ("decode", "speculative"))
    assert widest == {0: 1, 3: 4}.get(options.get("draft_tokens"), 8)  # type: ignore[call-overload]


def test_counts_and_sources_of_copied_text_are_told(serve: Serve) -> None:
    served = serve(manifest())
    served.worker(cycling)
    frontend = served.frontend()
    frontend.submit("a", [10 + i % 12 for i in range(40)], 100)
    frontend.wait_over("a")
    counts = frontend.deltas[-1].counts
    copied = sum(source == 4 for delta in frontend.deltas for source in delta.sources)
    assert counts.accepted_prompt == copied > 50
    assert sum(counts.accepted_by_depth) == copied
    assert counts.offered_prompt >= counts.accepted_prompt
    frontend.wait(lambda: served.tallies.accepted_tokens == copied)


def test_text_ends_with_the_end_token_or_the_budget_whichever_is_first(serve: Serve) -> None:
    """B01, B03: the end token at each row of accepted runs, against budgets around it."""
    served = serve(manifest())

    def text(context: list[int]) -> int:
        return END if len(context) % 50 == 0 else cycling(context)

    served.worker(text)
    frontend = served.frontend()
    cases = {f"{length}-{budget}": (length, budget) for length in range(36, 50) for budget in (3, 9, 60)}
    for name, (length, budget) in cases.items():
        frontend.submit(name, [10 + i % 12 for i in range(length)], budget, ends=(END,))
    frontend.wait_over(*cases)
    for name, (length, budget) in cases.items():
        expected = output(text, [10 + i % 12 for i in range(length)], budget, ends=(END,))
        assert frontend.output[name] == expected
        assert frontend.finished[name] == ("stop" if expected[-1] == END else "length")


def test_a_stop_string_frees_everything_and_nothing_follows(serve: Serve) -> None:
    served = serve(manifest())
    served.worker(mixing, round_s=0.002)
    frontend = served.frontend(acknowledges=False)
    frontend.submit("a", [20] * 30, 400)
    frontend.wait(lambda: len(frontend.output.get("a", [])) >= 20)
    frontend.stop_at("a", frontend.deltas[-1].epoch, 11)
    frontend.wait(served.idle)
    history = served.roster.history
    assert history is not None
    assert len(history) == 11
    assert served.roster.requests == {}
    assert served.tallies.finished == {"stop": 1}


def test_a_cancelled_request_ends_within_two_rounds(serve: Serve) -> None:
    served = serve(manifest(concurrency=1))
    worker = served.worker(mixing, round_s=0.01)
    frontend = served.frontend()
    frontend.submit("a", [20] * 30, 400)
    frontend.submit("b", [21] * 30, 4)
    frontend.wait(lambda: len(frontend.output.get("a", [])) >= 3)
    before = len(worker.rounds)
    frontend.cancel("a")
    frontend.cancel("never-heard-of")
    frontend.wait(lambda: "b" in frontend.output)
    assert len(worker.rounds) - before <= 3 + 4, "two queued rounds, then the next request's own"
    frontend.wait_over("b")
    frontend.wait(served.idle)


@pytest.mark.parametrize("rounds", [1, 2])
def test_no_more_rounds_are_queued_than_the_worker_takes(serve: Serve, rounds: int) -> None:
    """A worker whose rounds wait for a row server takes one at a time."""
    served = serve(manifest())
    worker = served.worker(mixing, round_s=0.01, rounds_in_flight=rounds)
    frontend = served.frontend()
    for name in ("a", "b"):
        frontend.submit(name, [20] * 30, 100)
    frontend.wait(lambda: bool(frontend.output.get("a")))
    for _ in range(5):
        worker.hold.set()
        time.sleep(0.05)
        worker.hold.clear()
        time.sleep(0.01)
    frontend.wait_over("a", "b")
    assert frontend.output["a"] == frontend.output["b"] == output(mixing, [20] * 30, 100)
    assert worker.most_queued == rounds


def test_the_queue_is_bounded_and_what_waits_is_served(serve: Serve) -> None:
    served = serve(manifest(concurrency=1), queue_limit=2)
    frontend = served.frontend()
    for number in range(4):
        frontend.submit(f"r{number}", [20] * 5, 5)
    frontend.wait_over("r2", "r3")
    assert {name: failed.code for name, failed in frontend.failed.items()} == {"r2": "overloaded", "r3": "overloaded"}
    served.worker(mixing)
    frontend.wait_over("r0", "r1")
    assert set(frontend.finished) == {"r0", "r1"}


def test_bad_requests_fail_alone(serve: Serve) -> None:
    served = serve(manifest())
    served.worker(mixing)
    frontend = served.frontend()
    frontend.submit("good", [20] * 30, 40)
    frontend.submit("empty", [], 5)
    frontend.submit("foreign", [1 << 62], 5)
    frontend.submit("long", [20] * 512, 5)
    frontend.submit("hot", [20], 5, temperature=9.0)
    frontend.submit("nan", [20], 5, top_p=float("nan"))
    frontend.wait_over("good", "empty", "foreign", "long", "hot", "nan")
    codes = {name: (failed.code, failed.param) for name, failed in frontend.failed.items()}
    assert codes == {
        "empty": ("invalid_request", "messages"),
        "foreign": ("invalid_request", "messages"),
        "long": ("context_length_exceeded", "messages"),
        "hot": ("invalid_request", "temperature"),
        "nan": ("invalid_request", "top_p"),
    }
    assert frontend.output["good"] == output(mixing, [20] * 30, 40)


def test_draining_finishes_what_runs_and_refuses_what_comes(serve: Serve) -> None:
    served = serve(manifest())
    served.worker(mixing, round_s=0.005)
    frontend = served.frontend()
    frontend.submit("a", [20] * 30, 60)
    frontend.wait(lambda: "a" in frontend.output)
    served.loop.stop()
    frontend.wait(lambda: frontend.status is not None and frontend.status.reason == "draining")
    assert frontend.status is not None
    assert not frontend.status.ready
    frontend.submit("late", [20] * 30, 60)
    frontend.wait_over("a", "late")
    assert frontend.output["a"] == output(mixing, [20] * 30, 60)
    assert frontend.failed["late"].code == "service_unavailable"
    assert served.join() == 0


def test_the_drain_limit_fails_what_is_left(serve: Serve) -> None:
    served = serve(manifest(), drain_timeout=0.3)
    served.worker(mixing, round_s=0.02)
    frontend = served.frontend()
    frontend.submit("a", [20] * 30, 400)
    frontend.wait(lambda: "a" in frontend.output)
    served.loop.stop()
    frontend.wait_over("a", seconds=2)
    assert frontend.failed["a"].code == "service_unavailable"
    assert served.join() == 0


def test_status_answers_a_ping(serve: Serve) -> None:
    served = serve(manifest())
    frontend = served.frontend()
    frontend.wait(lambda: frontend.status is not None)
    assert frontend.status is not None
    assert not frontend.status.ready
    served.worker(mixing)
    frontend.wait(lambda: frontend.status is not None and frontend.status.ready)
    frontend.status = None
    frontend.send(FrontendPing(instance=frontend.instance))
    frontend.wait(lambda: frontend.status is not None, seconds=0.5)


PROGRAM = """
import sys
sys.modules["torch"] = None
from pathlib import Path
from services.scheduler.config import SchedulerConfig
from services.scheduler.service import run
sys.exit(run(SchedulerConfig(core=Path(sys.argv[1]), run_dir=Path(sys.argv[2]))))
"""


def test_the_process_runs_without_torch_and_ends_with_sigterm(tmp_path: Path) -> None:
    core, run_dir = tmp_path / "core", tmp_path / "run"
    write_core(core, manifest())
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(core), str(run_dir)], stdout=subprocess.PIPE) as process:
        frontend = BareFrontend(run_dir)
        frontend.wait(lambda: frontend.status is not None)
        status = Path(f"/proc/{process.pid}/status").read_text()
        resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        frontend.close()
    assert resident < 150_000, "kilobytes"


def test_configurations_that_cannot_serve_are_refused(tmp_path: Path) -> None:
    core = tmp_path / "core"
    with pytest.raises(ManifestError, match="not a core"):
        open_core(SchedulerConfig(core=core, run_dir=tmp_path), 1)
    write_core(core, manifest(concurrency=2, widths=(1, 2)))
    beyond: list[dict[str, Any]] = [{"concurrency": 3}, {"draft_tokens": 5}]
    for wanted in beyond:
        with pytest.raises(ProcessError, match="was prepared for"):
            open_core(SchedulerConfig(core=core, run_dir=tmp_path, **wanted), 1)
    bad: list[dict[str, Any]] = [
        {"draft_tokens": 8},
        {"concurrency": 0},
        {"queue_limit": -1},
        {"metrics_port": 1 << 16},
    ]
    for wanted in bad:
        with pytest.raises(ProcessError):
            SchedulerConfig(core=core, run_dir=tmp_path, **wanted)


def test_copy_switches_follow_the_core_and_can_be_set_apart(tmp_path: Path) -> None:
    for default in (True, False):
        write_core(tmp_path / "core", manifest(history=default))
        for history, prompt in ((None, None), (False, None), (None, True), (True, False)):
            config = SchedulerConfig(
                core=tmp_path / "core", run_dir=tmp_path, history_drafts=history, prompt_drafts=prompt
            )
            roster = open_core(config, 1).roster
            assert (roster.history is not None) == (default if history is None else history)
            assert roster._prompt_copies == (default if prompt is None else prompt)
