"""How fast a worker's rounds followed one another, from two looks at its metrics: its own clock, not the client's."""

from __future__ import annotations

from dataclasses import dataclass

from compose.scrape import Scrape
from shared import metrics

US = 1e6


@dataclass(frozen=True, slots=True)
class Pace:
    """Rounds between two looks; times in microseconds a round. `ahead`: the share that was queued in time."""

    rounds: int
    round_us: float
    """On the device."""
    ahead: float
    lead_us: float
    """How long such a round had been queued when the one before it ended: what the services have to spare."""
    gap_us: float
    """How long the device stood still before it."""


def pace(before: Scrape, after: Scrape, kinds: tuple[str, ...] = ("decode", "speculative")) -> Pace:
    """Between two looks at a worker. The time on the device is of rounds of these kinds, the rest of those in time."""

    def grown(name: str, **labels: str) -> float:
        return (after.total(name, **labels) or 0.0) - (before.total(name, **labels) or 0.0)

    def mean(name: str, of: tuple[dict[str, str], ...] = ({},)) -> float:
        count = sum(grown(f"{name}_count", **labels) for labels in of)
        return US * sum(grown(f"{name}_sum", **labels) for labels in of) / count if count else 0.0

    # Every round has a lead, which is nothing if it came late; only those in time have a gap.
    rounds, ahead = grown(f"{metrics.LAUNCH_LEAD_SECONDS}_count"), grown(f"{metrics.LAUNCH_GAP_SECONDS}_count")
    return Pace(
        int(rounds),
        mean(metrics.ROUND_SECONDS, tuple({"kind": kind} for kind in kinds)),
        ahead / rounds if rounds else 0.0,
        US * grown(f"{metrics.LAUNCH_LEAD_SECONDS}_sum") / ahead if ahead else 0.0,
        mean(metrics.LAUNCH_GAP_SECONDS),
    )
