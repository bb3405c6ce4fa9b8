"""The breakdown of a start, and the counting of what Triton compiles."""

from __future__ import annotations

from dataclasses import dataclass

from structlog.testing import capture_logs

from services.worker.devices.readiness import Compilations, Readiness


@dataclass
class Times:
    """As much of Triton's times as is read: microseconds."""

    total: int


def compiled(listener: Compilations, hit: bool, micros: int = 0) -> None:
    listener(src=None, metadata={"name": "attend"}, metadata_group={}, times=Times(micros), cache_hit=hit)


def test_a_start_tells_what_each_phase_took_and_what_was_compiled() -> None:
    free = iter([100 << 20, 60 << 20, 60 << 20, 50 << 20])
    listener = Compilations()
    ready = Readiness(lambda: next(free), listener)
    with ready.phase("load"):
        compiled(listener, hit=True)
    with ready.phase("warm"):
        compiled(listener, hit=False, micros=1_500_000)
    with capture_logs() as lines:
        ready.report(70 << 20, graphs=3)
    (line,) = lines
    assert (line["event"], line["graphs"]) == ("worker.captured", 3)
    assert (line["load_mib"], line["warm_mib"], line["used_mib"], line["billed_mib"]) == (40.0, 10.0, 50.0, 70.0)
    assert (line["compiled"], line["from_cache"], line["compile_seconds"]) == (1, 1, 1.5)
    assert line["seconds"] >= line["load_seconds"] >= 0


def test_a_kernel_that_is_compiled_while_serving_is_told() -> None:
    listener = Compilations()
    Readiness(lambda: 0, listener).report(0)
    with capture_logs() as lines:
        compiled(listener, hit=False)
    assert [(line["event"], line["kernel"]) for line in lines] == [("worker.compiled_while_serving", "attend")]
    assert listener.late == 1
