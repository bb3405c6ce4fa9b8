"""`flare bench workload`: drafting against width one on the same requests, cold servers, arms alternated in one run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median

import click

from compose.bench import prompts
from compose.bench.load import Stream, streams
from compose.bench.server import ServerUnderTest

ARMS = {"width one": ("--mtp-draft-tokens", "0"), "drafting": ()}
NS = 1e9


@dataclass(frozen=True, slots=True)
class Run:
    """One arm in one repetition."""

    arm: str
    finished: tuple[Stream, ...]
    ready_s: float

    @property
    def rate(self) -> float:
        """Completed tokens a second over all streams, from the first request to the last end."""
        begin, end = min(s.begin_ns for s in self.finished), max(s.end_ns for s in self.finished)
        return sum(s.tokens for s in self.finished) * NS / (end - begin)


def report(kind: str, runs: list[Run]) -> str:
    """A table in Markdown, with the ratio of medians."""
    lines = [
        "| workload | arm | tokens/s | tokens | accepted / offered | first token ms | ready s | against width one |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    base = median(run.rate for run in runs if run.arm == "width one")
    for arm in ARMS:
        mine = [run for run in runs if run.arm == arm]
        all_streams = [s for run in mine for s in run.finished]
        lines.append(
            f"| {kind} | {arm} | {median(run.rate for run in mine):.1f} | {sum(s.tokens for s in all_streams)} |"
            f" {sum(s.accepted for s in all_streams)} / {sum(s.offered for s in all_streams)} |"
            f" {median((s.first_ns - s.begin_ns) / 1e6 for s in all_streams):.0f} |"
            f" {median(run.ready_s for run in mine):.1f} | {median(run.rate for run in mine) / base:.2f} |"
        )
    return "\n".join(lines)


@click.command()
@click.argument("core", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--kind", type=click.Choice(["chat", "copy"]), default="copy", show_default=True)
@click.option("--requests", type=click.IntRange(1), default=4, show_default=True)
@click.option("--concurrency", type=click.IntRange(1), default=1, show_default=True)
@click.option("--tokens", type=click.IntRange(1), default=200, show_default=True, help="Most tokens of each answer.")
@click.option("--repeat", type=click.IntRange(1), default=2, show_default=True)
def workload(core: Path, kind: str, requests: int, concurrency: int, tokens: int, repeat: int) -> None:
    """Drafting against width one over CORE, on distinct requests to cold servers."""
    bodies = prompts.copying(requests, tokens) if kind == "copy" else prompts.chat(requests, tokens)
    runs = []
    for _ in range(repeat):
        for arm, arguments in ARMS.items():
            with ServerUnderTest(core, *arguments) as server:
                runs.append(Run(arm, tuple(streams(server.address, bodies, concurrency)), server.ready_s))
    click.echo(report(kind, runs))
