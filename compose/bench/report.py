"""What `flare bench replay` found, as values and as Markdown tables."""

from __future__ import annotations

from statistics import median

import msgspec


class Arm(msgspec.Struct, frozen=True):
    """One concurrency in one repetition. `beside_ms`: the same rounds as they ran in the service."""

    concurrency: int
    rounds: int
    tokens: int
    offered: int
    accepted: int
    service_ms: float
    floor_ms: float
    beside_ms: float
    idle_ms: float
    first_ms: float
    """Until the first piece of text, of the stream in the middle."""

    @property
    def ratio(self) -> float:
        """Service over floor."""
        return self.service_ms / self.floor_ms


class GraphRow(msgspec.Struct, frozen=True):
    """A generation graph over all its rounds in the floor. Times in microseconds, medians."""

    batch: int
    width: int
    rounds: int
    emitted: float
    """Tokens of a round, all lanes, in the mean."""
    nodes: int
    round_us: float
    launch_us: float
    """The host's time for the launch."""
    gap_us: float
    """The device's idle time before it, queued behind another."""
    megabytes: float | None = None
    """What it must move; of a recipe whose bytes are known."""
    bound_us: float | None = None
    """That, at the copy bandwidth of this run."""


class Report(msgspec.Struct, frozen=True):
    """All repetitions' arms, seconds until their servers were ready and their workers' own breakdowns of that, and the
    graphs of the last."""

    arms: list[Arm]
    graphs: list[GraphRow]
    ready_s: list[float]
    starts: list[dict[str, float]]


def start_lines(report: Report) -> str:
    """A line for each server's start."""
    lines = []
    for ready_s, start in zip(report.ready_s, report.starts, strict=True):
        parts = ", ".join(f"{name} {found:g}" for name, found in start.items() if name != "pid")
        lines.append(f"ready in {ready_s:.1f} s; its worker: {parts or 'said nothing'}")
    return "\n".join(lines)


def service_table(arms: list[Arm]) -> str:
    """A table in Markdown, medians over repetitions."""
    lines = [
        "| streams | rounds | tokens | drafts accepted / offered | floor ms | service ms | service / floor"
        " | rounds beside the others | waiting | before and behind | first piece ms |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for concurrency in sorted({arm.concurrency for arm in arms}):
        mine = [arm for arm in arms if arm.concurrency == concurrency]
        parts = {
            "beside": median((arm.beside_ms - arm.floor_ms) / arm.floor_ms for arm in mine),
            "idle": median(arm.idle_ms / arm.floor_ms for arm in mine),
            "ends": median((arm.service_ms - arm.beside_ms - arm.idle_ms) / arm.floor_ms for arm in mine),
        }
        ratios = sorted(arm.ratio for arm in mine)
        lines.append(
            f"| {concurrency} | {mine[0].rounds} | {mine[0].tokens} | {sum(a.accepted for a in mine)} /"
            f" {sum(a.offered for a in mine)} | {median(a.floor_ms for a in mine):.0f} |"
            f" {median(a.service_ms for a in mine):.0f} | {median(ratios):.3f} ({ratios[0]:.3f}-{ratios[-1]:.3f}) |"
            f" {parts['beside']:+.1%} | {parts['idle']:+.1%} | {parts['ends']:+.1%} |"
            f" {median(a.first_ms for a in mine):.1f} |"
        )
    return "\n".join(lines)


def graph_table(rows: list[GraphRow]) -> str:
    """A table in Markdown."""
    lines = [
        "| B | W | rounds | tokens a round | nodes | round us | launch us | gap us | MB to move | bound us | ratio |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        bound, nbytes = row.bound_us, row.megabytes
        moved = f"{nbytes:.0f} | {bound:.0f} | {row.round_us / bound:.2f}" if nbytes and bound else "- | - | -"
        lines.append(
            f"| {row.batch} | {row.width} | {row.rounds} | {row.emitted:.2f} | {row.nodes} | {row.round_us:.0f} |"
            f" {row.launch_us:.1f} | {row.gap_us:.1f} | {moved} |"
        )
    return "\n".join(lines)
