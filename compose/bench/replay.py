"""`flare bench replay`: the whole service against the floor of the same rounds replayed in the worker alone.

Service and floor alternate in one run. The gap is split: rounds that ran slower beside the other processes, time in
which the worker waited for its next round, and what lies before the first and behind the last round. On a GPU every
generation graph that served has a line of its own besides.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from compose.bench import prompts
from compose.bench.load import Stream, streams
from compose.bench.report import Arm, Report, graph_table, service_table, start_lines
from compose.bench.server import ServerUnderTest
from shared import manifest

if TYPE_CHECKING:
    from compose.bench.floor import Floor
    from services.worker.recording import RecordedRound

MS = 1e6
READY_S = 600.0
FULL = {
    "smollm2": {"context_length": 1024, "prefill_buckets": (32, 256), "mixed_chunk": 128, "draft_tokens": 0},
    "qwen3.8-flash": {"context_length": 8192, "prefill_buckets": (512, 4096), "mixed_chunk": 512, "draft_tokens": 7},
}
"""Preparation of a core at full geometry: for benches, the smallest that serves their requests. SmolLM2 has no learned
drafter, and random text repeats nothing that could be copied."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What is served, and how requests ask."""

    core: Path
    device: str
    threads: int
    tokens: int
    arguments: tuple[str, ...]
    fields: dict[str, Any]

    def bodies(self, count: int, first: int) -> list[dict[str, Any]]:
        """Distinct requests."""
        return [{**body, **self.fields} for body in prompts.chat(count, self.tokens, first)]


def _window(finished: list[Stream], recorded: list[RecordedRound]) -> range:
    begin, end = min(s.begin_ns for s in finished), max(s.end_ns for s in finished)
    inside = [i for i, one in enumerate(recorded) if one.begin_ns >= begin and one.end_ns <= end]
    return range(inside[0], inside[-1] + 1)


def _arm(concurrency: int, finished: list[Stream], recorded: list[RecordedRound], floor: Floor) -> Arm:
    window = _window(finished, recorded)
    chosen = [recorded[i] for i in window]
    idle = sum(b.begin_ns - a.end_ns for a, b in pairwise(chosen))
    return Arm(
        concurrency=concurrency,
        rounds=len(window),
        tokens=sum(s.tokens for s in finished),
        offered=sum(s.offered for s in finished),
        accepted=sum(s.accepted for s in finished),
        service_ms=(max(s.end_ns for s in finished) - min(s.begin_ns for s in finished)) / MS,
        floor_ms=sum(floor.rounds[i].took_ns + floor.rounds[i].gap_ns for i in window) / MS,
        beside_ms=sum(one.end_ns - one.begin_ns for one in chosen) / MS,
        idle_ms=idle / MS,
        first_ms=sorted((s.first_ns - s.begin_ns) / MS for s in finished)[len(finished) // 2],
    )


def repetition(setup: Setup, concurrencies: tuple[int, ...]) -> Report:
    """One server over all concurrencies, then its floor, and what the floor tells of each graph."""
    with tempfile.TemporaryDirectory(prefix="flare-bench-") as folder:
        recording = Path(folder) / "rounds"
        finished = {}
        flags = ("--record", str(recording), "--threads", str(setup.threads), "--device", setup.device)
        with ServerUnderTest(setup.core, *flags, *setup.arguments, ready_s=READY_S) as server:
            ready_s = server.ready_s
            _check_tables(setup.core, recording)
            streams(server.address, [{**setup.bodies(1, 0)[0], "max_tokens": 8}], 1)
            first = 1
            for concurrency in concurrencies:
                finished[concurrency] = streams(server.address, setup.bodies(concurrency, first), concurrency)
                first += concurrency
            start = server.start()
        # Here, because `flare frontend` and `flare scheduler` run where there is no worker to import.
        from compose.bench.floor import Floor
        from compose.bench.graph_rows import graph_rows
        from services.worker.recording import rounds_of

        recorded = list(rounds_of(recording))
        command = [sys.executable, "-m", "compose.bench.floor", str(setup.core), str(recording)]
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE)
        if done.returncode:
            raise click.ClickException("the floor could not be measured; its error stands above")
        floor = msgspec.json.decode(done.stdout.splitlines()[-1], type=Floor)
    arms = [_arm(concurrency, finished[concurrency], recorded, floor) for concurrency in concurrencies]
    return Report(arms, graph_rows(manifest.read(setup.core), recorded, floor), [ready_s], [start])


def _check_tables(core: Path, recording: Path) -> None:
    """Before anything is measured. Raises `ClickException` for a service whose floor cannot be."""
    from services.worker.recording import worker_of

    if "disk" in manifest.storages(manifest.read(core), worker_of(recording).storage).values():
        raise click.ClickException(
            "a floor has no row server, and a table lies on disk: try `-- --embedding-table-storage ram`"
        )


@contextmanager
def _random(text: Path, recipe: str, concurrency: int, acceptance: float | None) -> Iterator[Path]:
    """A core of random weights, and an environment in which services know its recipe."""
    from compose.bench.random_core import MODULE, random_core
    from compose.bench.random_recipes import ACCEPTANCE
    from recipes.declaration import PreparationConfig
    from recipes.registry import VARIABLE

    config = PreparationConfig(concurrency=concurrency, **FULL[recipe])  # type: ignore[arg-type]
    forced = {} if acceptance is None else {ACCEPTANCE: str(acceptance)}
    before = dict(os.environ)
    os.environ.update({VARIABLE: MODULE, **forced})
    try:
        with tempfile.TemporaryDirectory(prefix="flare-bench-") as folder:
            yield random_core(
                Path(folder) / "core", text, "smollm2" if recipe == "smollm2" else "qwen3.8-flash", config
            )
    finally:
        os.environ.clear()
        os.environ.update(before)


def _random_fields(acceptance: float | None) -> dict[str, Any]:
    """Fields of requests to random weights: their tokens are some that any tokenizer can show, or one alone."""
    from compose.bench.forced_drafter import SAID

    said = range(SAID, SAID + (1 if acceptance is not None else 200))
    law = {"temperature": 1.0, "top_k": 20, "top_p": 0.95, "ignore_eos": True}
    return {**law, "logit_bias": {str(token): 100 for token in said}}


@click.command()
@click.argument("core", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option(
    "--concurrency", "concurrencies", type=click.IntRange(1), multiple=True, default=(1, 2, 4), show_default=True
)
@click.option("--tokens", type=click.IntRange(1), default=128, show_default=True, help="Most tokens of each answer.")
@click.option(
    "--repeat", type=click.IntRange(1), default=3, show_default=True, help="Repetitions; service and floor alternate."
)
@click.option(
    "--threads",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Threads of the worker, in both arms, on the CPU.",
)
@click.option(
    "--weights",
    type=click.Choice(["core", "random"]),
    default="core",
    show_default=True,
    help="Random ones are drawn on the GPU; CORE then needs nothing but a tokenizer.",
)
@click.option(
    "--geometry",
    type=click.Choice(["core", "full"]),
    default="core",
    show_default=True,
    help="Full: that of --recipe's model, with random weights.",
)
@click.option("--recipe", type=click.Choice(list(FULL)), default="smollm2", show_default=True)
@click.option(
    "--synthetic-acceptance",
    type=click.FloatRange(1.0, 8.0),
    help="Mean tokens of a round, forced by a drafter of the bench; needs random weights and a learned drafter.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
@click.argument("arguments", nargs=-1)
def replay(
    core: Path,
    device: str,
    concurrencies: tuple[int, ...],
    tokens: int,
    repeat: int,
    threads: int,
    weights: str,
    geometry: str,
    recipe: str,
    synthetic_acceptance: float | None,
    as_json: bool,
    arguments: tuple[str, ...],
) -> None:
    """The service over CORE against its replay floor. Options of `flare run` follow after `--`."""
    drawn = weights == "random"
    if drawn != (geometry == "full") or (drawn and device != "cuda"):
        raise click.UsageError("--geometry full and --weights random go together, and with --device cuda")
    if synthetic_acceptance is not None and (not drawn or recipe == "smollm2"):
        raise click.UsageError("--synthetic-acceptance needs --weights random of a recipe with a learned drafter")
    found: list[Report] = []
    with _served(core, drawn, recipe, max(concurrencies), synthetic_acceptance) as (served, fields):
        setup = Setup(served, device, threads, tokens, arguments, fields)
        for _ in range(repeat):
            found.append(repetition(setup, concurrencies))
    arms = [arm for one in found for arm in one.arms]
    ready_s, starts = [one.ready_s[0] for one in found], [one.starts[0] for one in found]
    report = Report(arms, found[-1].graphs, ready_s, starts)
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
        return
    click.echo(f"{start_lines(report)}\n\n{service_table(arms)}")
    if report.graphs:
        click.echo("\n" + graph_table(report.graphs))


@contextmanager
def _served(
    core: Path, drawn: bool, recipe: str, concurrency: int, acceptance: float | None
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The core to serve and the fields of its requests."""
    if not drawn:
        yield core, {}
        return
    with _random(core, recipe, concurrency, acceptance) as made:
        yield made, _random_fields(acceptance)
