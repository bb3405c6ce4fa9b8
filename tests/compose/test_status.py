"""What `flare status` makes of two looks at a server."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from compose.cli import main
from compose.local_servers import LocalServer
from compose.run_directory import LockedRunDirectory
from compose.scrape import Scrape, scrape
from compose.status import Looks, Target
from compose.status_board import Board, board, duration
from shared import metrics


def sample(name: str, value: float, **labels: str) -> tuple[tuple[str, tuple[tuple[str, str], ...]], float]:
    return (name, tuple(labels.items())), value


def process(start: float, cpu: float) -> list[tuple[tuple[str, tuple[tuple[str, str], ...]], float]]:
    return [
        sample(metrics.PROCESS_START, start),
        sample(metrics.PROCESS_MEMORY, 300 << 20),
        sample(metrics.PROCESS_CPU + "_total", cpu),
    ]


def scheduler(tokens: float, start: float = 1000.0) -> Scrape:
    offered, accepted = metrics.OFFERED_BY_SOURCE + "_total", metrics.ACCEPTED_BY_SOURCE + "_total"
    return Scrape(
        dict(
            [
                *process(start, 5.0),
                sample(metrics.GENERATION_TOKENS + "_total", tokens),
                sample(offered, 6, source="prompt", position="0"),
                sample(offered, 4, source="prompt", position="1"),
                sample(offered, 10, source="learned", position="0"),
                sample(offered, 0, source="history", position="0"),
                sample(accepted, 9, source="prompt", position="0"),
                sample(accepted, 1, source="learned", position="0"),
                sample(metrics.PAGES, 40),
                sample(metrics.PAGES_FREE, 30),
                sample(metrics.REQUESTS_RUNNING, 2),
                sample(metrics.REQUEST_SLOTS, 4),
            ]
        )
    )


def worker(rounds: float) -> Scrape:
    shape = {"kind": "speculative", "batch": "1"}
    return Scrape(
        dict(
            [
                *process(1000.0, 1.0 + rounds),
                sample(metrics.ROUNDS + "_total", rounds, width="8", **shape),
                sample(metrics.ROUNDS + "_total", rounds, width="1", **shape),
            ]
        ),
        reason="no scheduler is attached",
    )


def shown() -> Board:
    before = {"scheduler": scheduler(100), "worker": worker(10)}
    after = {"frontend": Scrape(down="no answer"), "scheduler": scheduler(150), "worker": worker(11)}
    return board(before, after, {"worker": 7, "frontend": 8}, 2.0, 1200.0)


def test_a_service_is_ready_or_says_why_not_or_is_down() -> None:
    frontend, found, waiting = shown().services
    assert (frontend.state, frontend.pid, frontend.memory) == ("down: no answer", "-", "-")
    assert (found.state, found.pid, found.up, found.memory, found.cpu) == ("ready", "-", "3m20s", "300 MiB", "0%")
    assert (waiting.state, waiting.pid, waiting.cpu) == ("not ready: no scheduler is attached", "7", "50%")


def test_where_embedding_tables_lie_is_told_for_cores_that_have_any() -> None:
    sizes = {"gpu": 0, "ram": 0, "disk": 3 << 30}
    places = [sample(metrics.TABLE_BYTES, size, storage=name) for name, size in sizes.items()]
    rows = [
        sample(metrics.ROWS_ASKED + "_total", 400),
        sample(metrics.ROW_CACHE_HITS + "_total", 100),
        sample(metrics.ROW_SERVER_RESTARTS + "_total", 2),
    ]
    found = dict(board({}, {"worker": Scrape(dict([*places, *rows]))}, {}, 1.0, 0.0).values)
    assert found["embedding tables"] == "3.00 GiB on disk"
    assert found["  rows"] == "25% of 400 from the cache; row server replaced 2 times"
    without = [sample(metrics.TABLE_BYTES, 0, storage=name) for name in sizes]
    assert "embedding tables" not in dict(board({}, {"worker": Scrape(dict(without))}, {}, 1.0, 0.0).values)


def test_rates_shares_and_gauges() -> None:
    values = dict(shown().values)
    assert values == {
        "rounds/s": "1.0",
        "tokens/s": "25.0",
        "acceptance": "50%",
        "  learned": "10% of 10",
        "  prompt": "90% of 10",
        "running": "2 of 4",
        "queued": "- of -",
        "pages used": "10 of 40 (25%)",
        "frames outstanding": "-",
    }


def test_a_restarted_process_counts_from_zero() -> None:
    found = board({"scheduler": scheduler(100)}, {"scheduler": scheduler(30)}, {}, 2.0, 1200.0)
    assert dict(found.values)["tokens/s"] == "15.0"


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0s"), (59.9, "59s"), (60, "1m00s"), (3725, "1h02m"), (90000, "1d01h")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_nobody_there_is_down_and_not_an_error() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        found = scrape(f"http://127.0.0.1:{free.getsockname()[1]}")
    assert "refused" in found.down
    assert scrape("http://127.0.0.1:notaport").down


def test_a_service_that_nobody_can_look_at_is_unknown_and_not_unwell() -> None:
    found = board({}, {"frontend": Scrape(), "worker": Scrape(unknown=True)}, {}, 1.0, 0.0)
    assert [(row.state, row.well) for row in found.services] == [("ready", True), ("unknown", True)]
    assert not any(row.well for row in shown().services if row.name != "scheduler")


def test_services_that_say_nothing_are_down_under_flare_run_and_unknown_without_it(tmp_path: Path) -> None:
    looks = Looks(Target(local=LocalServer(tmp_path)))
    assert [(row.state, row.well) for row in looks.next().services] == [("unknown", True)] * 3
    supervisor = LockedRunDirectory(tmp_path)
    assert [row.state for row in looks.next().services] == ["down: it does not say where its metrics are"] * 3
    supervisor.release()


def test_without_a_server_the_command_says_what_it_needs(tmp_path: str) -> None:
    result = CliRunner().invoke(main, ["status", "--once"], env={"XDG_RUNTIME_DIR": str(tmp_path)})
    assert result.exit_code == 1
    assert "no server of yours runs here" in result.stderr
    result = CliRunner().invoke(main, ["status", "--url", "http://127.0.0.1:1", "--metrics", "router=http://x"])
    assert result.exit_code != 0
    assert "SERVICE=URL" in result.stderr
