"""`ignition debug-serve`: the whole server in one process, for people who write recipes."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from compose import cli
from compose.ignition import debug_serve
from tests.fixtures.harness import RECIPES, Server, wait_until
from tests.fixtures.scripted.recipe import make_core
from tests.system.stepping import STEPPING, WORD

TEXT = "one process says hello"


def test_it_streams_from_one_process_and_ctrl_c_ends_it_well(core: Path) -> None:
    """The harness asserts that no process, shared memory or run directory stays behind."""
    with Server(core, ("--no-mtp-adaptive-verification",), debugged=True) as server:
        server.wait_ready()
        with server.stream(f"d1:4/2;say:{TEXT}", max_tokens=100) as events:
            found = list(events)
        assert "".join(event.text for event in found) == TEXT
        answer = server.chat(f"d1:4/2;say:{TEXT}", max_tokens=100)
        assert answer["metrics"]["speculative_decoding"]["by_source"]["learned"]["num_accepted_draft_tokens"] > 0
        assert len(server.tree()) == 1
        server.processes["debug-serve"].send_signal(signal.SIGINT)
        assert server.processes["debug-serve"].wait(30) == 0


def test_an_exception_of_the_model_shows_its_traceback_and_ends_the_server(core: Path) -> None:
    with Server(core, debugged=True) as server:
        server.wait_ready()
        with pytest.raises(RuntimeError, match="state_lost"):
            server.chat("crash;")
        assert server.processes["debug-serve"].wait(30) == 1
        for line in ("scripted/target.py", "in forward", "RuntimeError: crash; as the prompt directs"):
            assert line in server.log


def test_a_breakpoint_in_a_program_stops_there_and_goes_on(tmp_path: Path) -> None:
    core = make_core(tmp_path / "core", recipe=STEPPING)
    environment = {"FLARE_RECIPE_MODULES": f"{RECIPES},tests.system.stepping"}
    with Server(core, debugged=True, environment=environment) as server:
        server.wait_ready()
        commands = server.processes["debug-serve"].stdin
        assert commands is not None
        commands.write(b"p 'rows', len(rows.lanes)\n")
        commands.flush()
        with server.stream(f"{WORD};say:{TEXT}", max_tokens=100) as events:
            wait_until(lambda: "('rows', 1)" in server.log, 30, "the debugger answers")
            assert server.ready(), "frontend and scheduler go on while a program is held"
            commands.write(b"continue\n")
            commands.flush()
            assert "".join(event.text for event in events) == TEXT
        assert "(Pdb)" in server.log


def test_a_configuration_that_cannot_serve_is_one_line(core: Path) -> None:
    with Server(core, ("--speculative-fixed-width", "9"), debugged=True) as server:
        assert server.processes["debug-serve"].wait(60) == 1
        assert "fixed width of 9 is not among" in server.log
        assert "Traceback" not in server.log


def test_it_takes_the_options_of_flare_run() -> None:
    own = {parameter.name for parameter in debug_serve.params}
    of_run = {parameter.name for parameter in cli.run.params}
    # A supervisor's patience, and what a demo core is prepared with: it has neither.
    assert of_run - own == {"hang_timeout", "context_length"}
    assert not own - of_run
