"""What the floor of a recording tells of each generation graph, beside the bytes that its rounds had to move."""

from __future__ import annotations

from statistics import mean, median

from compose.bench.floor import Floor
from compose.bench.report import GraphRow
from compose.bench.traffic import round_bytes
from services.worker.recording import RecordedRound
from shared.frames import PlanFrame, plan_frame, plan_layout
from shared.manifest import PAGE_TOKENS, Manifest, largest_chunk

_GENERATION = ("decode", "speculative")


def graph_rows(manifest: Manifest, recorded: list[RecordedRound], floor: Floor) -> list[GraphRow]:
    """Empty for a floor on the CPU, which has no nodes. A round counts if one of the same graph was before it."""
    if not floor.nodes:
        return []
    found = []
    for index, graph in enumerate(manifest.graphs):
        chosen = [i for i, one in enumerate(recorded) if one.graph == index and i and recorded[i - 1].graph == index]
        if graph.kind not in _GENERATION or not chosen:
            continue
        rounds = [floor.rounds[i] for i in chosen]
        stood = [_lanes(manifest, recorded[i].plan) for i in chosen]
        lanes, position = (mean(column) for column in zip(*stood, strict=True))
        nbytes = round_bytes(manifest, graph, lanes, round(position))
        known = nbytes is not None and floor.bandwidth
        found.append(
            GraphRow(
                batch=graph.batch_capacity,
                width=graph.token_capacity,
                rounds=len(chosen),
                emitted=mean(recorded[i].emitted for i in chosen),
                nodes=floor.nodes[index],
                round_us=median(one.took_ns for one in rounds) / 1e3,
                launch_us=median(one.launch_ns for one in rounds) / 1e3,
                gap_us=median(one.gap_ns for one in rounds) / 1e3,
                megabytes=nbytes / 1e6 if nbytes is not None else None,
                bound_us=nbytes / floor.bandwidth / 1e3 if nbytes is not None and known else None,
            )
        )
    return sorted(found, key=lambda row: (row.batch, row.width))


def _lanes(manifest: Manifest, plan: bytes) -> tuple[int, float]:
    """Lanes of a plan, and about where they stand: half of a page below the end of their pages."""
    frame: PlanFrame = plan_frame(plan_layout(manifest.geometry, largest_chunk(manifest)), memoryview(plan), 0)
    lanes = int(frame.lanes[0])
    pages = (frame.page_table[:lanes] >= 0).sum(axis=1)
    return lanes, float(pages.mean() - 0.5) * PAGE_TOKENS if lanes else 0.0
