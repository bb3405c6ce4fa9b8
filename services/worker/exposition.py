"""The metrics and the health of a worker. Read in a thread of its own, which the launch thread never waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client.core import Metric

from services.worker.meters import Meters
from services.worker.replay import LaunchThread
from services.worker.rows import Tables
from shared import metrics
from shared.channel import Refused
from shared.exposition import Exposition, histogram, number, standing, table
from shared.mailbox import Tally


@dataclass(frozen=True, slots=True)
class Shown:
    """What a worker lets others read. `round_timeout` in seconds; `unready` says why it cannot serve, or nothing."""

    meters: Meters
    launch: LaunchThread
    tables: Tables
    refused: Refused
    round_timeout: float
    snapshots: int
    unready: Callable[[], str]
    clock: Callable[[], float]

    def collect(self) -> Iterable[Metric]:
        """All metric families of the worker."""
        meters, rounds = self.meters, list(self.meters.rounds.items())
        yield number(metrics.REFUSED_FRAMES, self.refused.count)
        yield number(metrics.STALE_MESSAGES, meters.stale_messages)
        yield number(metrics.SNAPSHOT_SLOTS, self.snapshots)
        yield number(metrics.ROUND_AGE_SECONDS, self.launch.age(self.clock()))
        yield table(metrics.ROUNDS, [(shape, found.count) for shape, found in rounds])
        yield histogram(metrics.ROUND_SECONDS, *rounds)
        yield histogram(metrics.LAUNCH_LEAD_SECONDS, ((), meters.lead))
        yield histogram(metrics.LAUNCH_GAP_SECONDS, ((), meters.gap))
        tables = self.tables
        yield table(metrics.TABLE_BYTES, [((name,), nbytes) for name, nbytes in tables.bytes_by_storage.items()])
        yield number(metrics.ROWS_ASKED, tables.tally(Tally.ASKED))
        yield number(metrics.ROW_CACHE_HITS, tables.tally(Tally.HITS))
        yield number(metrics.ROW_CACHE_MISSES, tables.tally(Tally.MISSES))
        yield number(metrics.ROW_BYTES_READ, tables.tally(Tally.READ))
        yield histogram(metrics.ROW_WAIT_SECONDS, ((), tables.waits))
        yield number(metrics.ROW_SERVER_RESTARTS, tables.restarts)

    def unhealthy(self) -> str:
        """Why this process should be restarted: its poller stands still, or its device does not come back."""
        now = self.clock()
        if self.launch.age(now) > self.round_timeout:
            return f"a round has been running for {self.launch.age(now):.0f} s"
        return standing(now)

    def exposition(self, model: str) -> Exposition:
        """All of it, for a listener."""
        return Exposition(self.collect, self.unready, lambda: model, self.unhealthy)
