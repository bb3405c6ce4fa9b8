"""What `flare status` says, from two looks at every service. Pure: no clock, no network, no terminal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compose.scrape import Scrape
from shared import metrics

UNKNOWN = "-"
UNSEEN = "unknown"
_COUNTED = "_total"


@dataclass(frozen=True, slots=True)
class ServiceRow:
    """One service. `state` is "ready", why it is not, why it is not there, or UNSEEN: nobody could look."""

    name: str
    pid: str
    state: str
    up: str
    memory: str
    cpu: str

    @property
    def well(self) -> bool:
        """Whether nothing is known to be wrong with it."""
        return self.state in ("ready", UNSEEN)


@dataclass(frozen=True, slots=True)
class Board:
    """All of it, as text: a row a service, then a value a name."""

    services: tuple[ServiceRow, ...]
    values: tuple[tuple[str, str], ...]


def duration(seconds: float) -> str:
    """Seconds as people say them: 45s, 3m12s, 2h05m, 3d04h."""
    whole = max(0, int(seconds))
    for size, unit, smaller, name in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // smaller:02d}{name}"
    return f"{whole}s"


def _size(count: float) -> str:
    return f"{count / (1 << 20):.0f} MiB" if count < 1 << 30 else f"{count / (1 << 30):.2f} GiB"


def _plain(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:g}"


def _rate(before: Scrape, after: Scrape, name: str, seconds: float) -> float | None:
    """How fast a counter grew. One that fell is of a restarted process, and grew by what it says now."""
    old, new = before.total(name), after.total(name)
    if new is None or seconds <= 0:
        return None
    return (new - old if old is not None and old <= new else new) / seconds


def _share(part: float | None, whole: float | None) -> str:
    return f"{part / whole:.0%}" if whole and part is not None else UNKNOWN


def _row(name: str, pid: int | None, before: Scrape, after: Scrape, seconds: float, now: float) -> ServiceRow:
    shown = str(pid) if pid is not None and not after.down else UNKNOWN
    if after.down:
        return ServiceRow(name, shown, f"down: {after.down}", UNKNOWN, UNKNOWN, UNKNOWN)
    if after.unknown:
        return ServiceRow(name, shown, UNSEEN, UNKNOWN, UNKNOWN, UNKNOWN)
    start, memory = after.total(metrics.PROCESS_START), after.total(metrics.PROCESS_MEMORY)
    busy = _rate(before, after, metrics.PROCESS_CPU + _COUNTED, seconds)
    return ServiceRow(
        name,
        shown,
        f"not ready: {after.reason}" if after.reason else "ready",
        UNKNOWN if start is None else duration(now - start),
        UNKNOWN if memory is None else _size(memory),
        UNKNOWN if busy is None else f"{busy:.0%}",
    )


def _acceptance(scheduler: Scrape) -> list[tuple[str, str]]:
    """The share of verified drafts that was accepted, since the scheduler started: of all, then by source."""
    offered, accepted = metrics.OFFERED_BY_SOURCE + _COUNTED, metrics.ACCEPTED_BY_SOURCE + _COUNTED
    found = [("acceptance", _share(scheduler.total(accepted), scheduler.total(offered)))]
    for source in scheduler.values_of(offered, "source"):
        verified = scheduler.total(offered, source=source)
        if verified:
            share = _share(scheduler.total(accepted, source=source), verified)
            found.append((f"  {source}", f"{share} of {verified:.0f}"))
    return found


def _tables(worker: Scrape) -> list[tuple[str, str]]:
    """Where embedding tables lie, for a core that has any; of those on disk, what the row server's cache is worth."""
    places = [(worker.total(metrics.TABLE_BYTES, storage=name), name) for name in ("gpu", "ram", "disk")]
    lying = [f"{_size(nbytes)} {'on' if name == 'disk' else 'in'} {name}" for nbytes, name in places if nbytes]
    if not lying:
        return []
    found = [("embedding tables", ", ".join(lying))]
    asked = worker.total(metrics.ROWS_ASKED + _COUNTED)
    if asked:
        hits = _share(worker.total(metrics.ROW_CACHE_HITS + _COUNTED), asked)
        restarts = _plain(worker.total(metrics.ROW_SERVER_RESTARTS + _COUNTED))
        found.append(("  rows", f"{hits} of {asked:.0f} from the cache; row server replaced {restarts} times"))
    return found


def board(
    before: Mapping[str, Scrape], after: Mapping[str, Scrape], pids: Mapping[str, int], seconds: float, now: float
) -> Board:
    """From two looks that lie `seconds` apart; `now` in seconds since 1970. A service may lack in either."""
    nothing = Scrape()
    rows = tuple(
        _row(name, pids.get(name), before.get(name, nothing), found, seconds, now) for name, found in after.items()
    )
    scheduler, worker = after.get("scheduler", nothing), after.get("worker", nothing)
    rounds = _rate(before.get("worker", nothing), worker, metrics.ROUNDS + _COUNTED, seconds)
    tokens = _rate(before.get("scheduler", nothing), scheduler, metrics.GENERATION_TOKENS + _COUNTED, seconds)
    pages, free = scheduler.total(metrics.PAGES), scheduler.total(metrics.PAGES_FREE)
    used = None if pages is None or free is None else pages - free
    values = [
        ("rounds/s", UNKNOWN if rounds is None else f"{rounds:.1f}"),
        ("tokens/s", UNKNOWN if tokens is None else f"{tokens:.1f}"),
        *_acceptance(scheduler),
        (
            "running",
            f"{_plain(scheduler.total(metrics.REQUESTS_RUNNING))} of {_plain(scheduler.total(metrics.REQUEST_SLOTS))}",
        ),
        (
            "queued",
            f"{_plain(scheduler.total(metrics.REQUESTS_WAITING))} of {_plain(scheduler.total(metrics.QUEUE_LIMIT))}",
        ),
        ("pages used", f"{_plain(used)} of {_plain(pages)} ({_share(used, pages)})"),
        ("frames outstanding", _plain(scheduler.total(metrics.ROUNDS_OUTSTANDING))),
        *_tables(worker),
    ]
    return Board(rows, tuple(values))
