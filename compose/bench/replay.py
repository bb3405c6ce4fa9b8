"""`flare bench replay`: the whole service against the floor of the same rounds replayed in the worker alone.

Service and floor alternate in one run. The gap is split: rounds that ran slower beside the other processes, time in
which the worker waited for its next round, and what lies before the first and behind the last round.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import click

from compose.bench import prompts
from compose.bench.load import Stream, streams
from compose.bench.server import ServerUnderTest

if TYPE_CHECKING:
    from services.worker.recording import RecordedRound

MS = 1e6


@dataclass(frozen=True, slots=True)
class Arm:
    """One concurrency in one repetition; milliseconds."""

    concurrency: int
    rounds: int
    tokens: int
    offered: int
    accepted: int
    service: float
    floor: float
    beside: float
    """The same rounds as they ran in the service."""
    idle: float

    @property
    def ratio(self) -> float:
        """Service over floor."""
        return self.service / self.floor


def _window(finished: list[Stream], recorded: list[RecordedRound]) -> range:
    begin, end = min(s.begin_ns for s in finished), max(s.end_ns for s in finished)
    inside = [i for i, one in enumerate(recorded) if one.begin_ns >= begin and one.end_ns <= end]
    return range(inside[0], inside[-1] + 1)


def _arm(concurrency: int, finished: list[Stream], recorded: list[RecordedRound], floor: list[int]) -> Arm:
    window = _window(finished, recorded)
    chosen = [recorded[i] for i in window]
    idle = sum(b.begin_ns - a.end_ns for a, b in pairwise(chosen))
    return Arm(
        concurrency,
        len(window),
        sum(s.tokens for s in finished),
        sum(s.offered for s in finished),
        sum(s.accepted for s in finished),
        (max(s.end_ns for s in finished) - min(s.begin_ns for s in finished)) / MS,
        sum(floor[i] for i in window) / MS,
        sum(one.end_ns - one.begin_ns for one in chosen) / MS,
        idle / MS,
    )


def repetition(
    core: Path, concurrencies: tuple[int, ...], tokens: int, threads: int, arguments: tuple[str, ...]
) -> list[Arm]:
    """One server over all concurrencies, then its floor."""
    with tempfile.TemporaryDirectory(prefix="flare-bench-") as folder:
        recording = Path(folder) / "rounds"
        finished = {}
        flags = ("--record", str(recording), "--threads", str(threads), *arguments)
        with ServerUnderTest(core, *flags) as server:
            streams(server.address, prompts.chat(1, 8), 1)
            first = 1
            for concurrency in concurrencies:
                bodies = prompts.chat(concurrency, tokens, first)
                finished[concurrency] = streams(server.address, bodies, concurrency)
                first += concurrency
        # Here, because `flare frontend` and `flare scheduler` run where there is no worker to import.
        from services.worker.recording import rounds_of

        recorded = list(rounds_of(recording))
        command = [sys.executable, "-m", "compose.bench.floor", str(core), str(recording), str(threads)]
        floor = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return [_arm(concurrency, finished[concurrency], recorded, floor) for concurrency in concurrencies]


def report(arms: list[Arm]) -> str:
    """A table in Markdown, medians over repetitions."""
    lines = [
        "| streams | rounds | tokens | drafts accepted / offered | floor ms | service ms | service / floor"
        " | rounds beside the others | waiting | before and behind |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for concurrency in sorted({arm.concurrency for arm in arms}):
        mine = [arm for arm in arms if arm.concurrency == concurrency]
        parts = {
            "beside": median((arm.beside - arm.floor) / arm.floor for arm in mine),
            "idle": median(arm.idle / arm.floor for arm in mine),
            "ends": median((arm.service - arm.beside - arm.idle) / arm.floor for arm in mine),
        }
        ratios = sorted(arm.ratio for arm in mine)
        lines.append(
            f"| {concurrency} | {mine[0].rounds} | {mine[0].tokens} | {sum(a.accepted for a in mine)} /"
            f" {sum(a.offered for a in mine)} | {median(a.floor for a in mine):.0f} |"
            f" {median(a.service for a in mine):.0f} | {median(ratios):.3f} ({ratios[0]:.3f}-{ratios[-1]:.3f}) |"
            f" {parts['beside']:+.1%} | {parts['idle']:+.1%} | {parts['ends']:+.1%} |"
        )
    return "\n".join(lines)


@click.command()
@click.argument("core", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--concurrency", "concurrencies", type=int, multiple=True, default=(1, 2, 4), show_default=True)
@click.option("--tokens", default=128, show_default=True, help="Most tokens of each answer.")
@click.option("--repeat", default=3, show_default=True, help="Repetitions; service and floor alternate.")
@click.option("--threads", default=1, show_default=True, help="Threads of the worker, in both arms.")
@click.argument("arguments", nargs=-1)
def replay(
    core: Path, concurrencies: tuple[int, ...], tokens: int, repeat: int, threads: int, arguments: tuple[str, ...]
) -> None:
    """The service over CORE against its replay floor. Options of `flare run` follow after `--`."""
    arms: list[Arm] = []
    for _ in range(repeat):
        arms.extend(repetition(core, concurrencies, tokens, threads, arguments))
    click.echo(report(arms))
