"""A host for one catalog in this process: writes plan frames as a scheduler would, replays, reads records.

Real frames, real programs, no sockets: what a test of the round itself needs and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from recipes.declaration import LoadConfig, Recipe
from services.worker.catalog import Catalog
from shared.frames import (
    FRAMES,
    METADATA,
    CompletionFrame,
    Fault,
    InitFloat,
    InitInt,
    Meta,
    PlanFrame,
    Source,
    blank_plans,
    completion_frame,
    completion_layout,
    plan_frame,
    plan_layout,
)
from shared.manifest import Kind, Manifest, largest_chunk
from shared.messages.common import Sampling


@dataclass(frozen=True, slots=True)
class Record:
    """One slot's record, decoded."""

    meta: tuple[int, ...]
    tokens: tuple[int, ...]

    def __getitem__(self, column: Meta) -> int:
        return self.meta[column]

    @property
    def faults(self) -> Fault:
        return Fault(self[Meta.FAULTS])


@dataclass(frozen=True, slots=True)
class LanePlan:
    """One lane of a round. `copies` starts at absolute position `anchor`."""

    slot: int
    ceiling: int = 1
    copies: tuple[int, ...] = ()
    anchor: int = 0
    source: Source = Source.PROMPT
    export_slot: int = -1
    export_boundary: int = 0


@dataclass(slots=True)
class Host:
    """Slot s owns the pages from s * pages_per_request on; its epoch is `epochs[s]`, its request number 100 + s."""

    manifest: Manifest
    catalog: Catalog
    plans: tuple[PlanFrame, ...]
    completions: tuple[CompletionFrame, ...]
    epochs: dict[int, int] = field(default_factory=dict)

    def pages(self, slot: int) -> np.ndarray:
        count = self.manifest.geometry.pages_per_request
        return np.arange(slot * count, (slot + 1) * count, dtype=np.int32)

    def plan(self, graph: int) -> PlanFrame:
        """The frame of the next round, blank but for its header."""
        sequence = self.catalog.counter
        frame = self.plans[sequence % FRAMES]
        frame.head[0] = frame.tail[0] = sequence
        frame.graph[0] = graph
        frame.lanes[0] = 0
        frame.export_slot.fill(-1)
        frame.chunk_export_slot.fill(-1)
        frame.chunk_slot[0] = frame.snapshot_row[0] = -1
        frame.chunk_length[0] = frame.restore_length[0] = 0
        return frame

    def replay(self, graph: int) -> dict[int, Record]:
        """Runs the planned round and returns the records it wrote, by slot."""
        sequence = self.catalog.replay(graph)
        frame = self.completions[sequence % FRAMES]
        assert frame.head[0] == frame.tail[0] == sequence
        found = {}
        for row in frame.records:
            if row[Meta.SLOT] >= 0:
                emitted = int(row[Meta.EMITTED])
                found[int(row[Meta.SLOT])] = Record(
                    tuple(int(v) for v in row[:METADATA]), tuple(int(v) for v in row[METADATA : METADATA + emitted])
                )
        return found

    def init(
        self,
        slot: int,
        prompt_length: int,
        sampling: Sampling,
        budget: int,
        end_ids: tuple[int, ...],
        prefix: int = 0,
    ) -> Record:
        """Admits a request into a slot under a new epoch."""
        graph = self.manifest.index_of("init", 1, 0)
        plan = self.plan(graph)
        self.epochs[slot] = self.epochs.get(slot, 0) + 1
        plan.init_slot[0], plan.init_epoch[0], plan.init_request[0] = slot, self.epochs[slot], 100 + slot
        integers = {
            InitInt.SEED: np.uint64(sampling.seed).astype(np.int64),
            InitInt.TOP_K: sampling.top_k,
            InitInt.BUDGET: budget,
            InitInt.MIN_TOKENS: sampling.min_tokens,
            InitInt.END_COUNT: len(end_ids),
            InitInt.BIAS_COUNT: len(sampling.logit_bias),
            InitInt.TOP_LOGPROBS: sampling.logprobs,
            InitInt.PROMPT_LENGTH: prompt_length,
            InitInt.PREFIX: prefix,
        }
        for column, value in integers.items():
            plan.init_integers[column] = value
        plan.init_floats[InitFloat.TEMPERATURE] = sampling.temperature
        plan.init_floats[InitFloat.TOP_P] = sampling.top_p
        plan.init_floats[InitFloat.MIN_P] = sampling.min_p
        plan.init_floats[InitFloat.REPETITION] = sampling.repetition_penalty
        plan.init_floats[InitFloat.FREQUENCY] = sampling.frequency_penalty
        plan.init_floats[InitFloat.PRESENCE] = sampling.presence_penalty
        plan.init_end_ids[: len(end_ids)] = end_ids
        for index, (token, bias) in enumerate(sampling.logit_bias):
            plan.init_bias_ids[index], plan.init_bias_values[index] = token, bias
        return self.replay(graph)[slot]

    def chunk(
        self, slot: int, start: int, tokens: tuple[int, ...], final: int, pending: int = -1, export: int = -1
    ) -> Record:
        """Feeds one prompt chunk through the smallest prefill bucket that holds it."""
        _, bucket = next(shape for shape in self.manifest.capacities("prefill") if shape[1] >= len(tokens))
        graph = self.manifest.index_of("prefill", 1, bucket)
        plan = self.plan(graph)
        self.fill_chunk(plan, slot, start, tokens, final, pending, export)
        return self.replay(graph)[slot]

    def scored(self, slot: int, start: int, tokens: tuple[int, ...], behind: int) -> Record:
        """Feeds a chunk whose rows tell of the tokens that follow them; `behind` follows the last one."""
        ((_, bucket),) = set(self.manifest.capacities("scored_prefill"))
        graph = self.manifest.index_of("scored_prefill", 1, bucket)
        plan = self.plan(graph)
        self.fill_chunk(plan, slot, start, tokens, 0, behind, -1)
        return self.replay(graph)[slot]

    def restored(self, slot: int, row: int, total: int, note: tuple[int, ...] = (), start: int = 0) -> Record:
        """Restores snapshot row `row` of `total` tokens (-1: they are there), and notes tokens from `start` on."""
        graph = self.manifest.index_of("restore", 1, 0)
        plan = self.plan(graph)
        self.fill_chunk(plan, slot, start, note, 0, -1, -1)
        plan.snapshot_row[0], plan.restore_length[0] = row, total
        return self.replay(graph)[slot]

    def resumed(self, slot: int) -> Record:
        """Draws the first token behind a restored prefix."""
        graph = self.manifest.index_of("resume", 1, 0)
        self.fill_chunk(self.plan(graph), slot, 0, (), 0, -1, -1)
        return self.replay(graph)[slot]

    def fill_chunk(
        self, plan: PlanFrame, slot: int, start: int, tokens: tuple[int, ...], final: int, pending: int, export: int
    ) -> None:
        """The chunk fields of a plan."""
        plan.chunk_slot[0], plan.chunk_epoch[0], plan.chunk_request[0] = slot, self.epochs[slot], 100 + slot
        plan.chunk_start[0], plan.chunk_length[0], plan.chunk_final[0] = start, len(tokens), final
        plan.chunk_pending[0], plan.chunk_export_slot[0] = pending, export
        plan.chunk_page_table[:] = self.pages(slot)
        plan.chunk_tokens[: len(tokens)] = tokens

    def fill_lanes(self, plan: PlanFrame, lanes: list[LanePlan]) -> None:
        """The lane fields of a plan."""
        plan.lanes[0] = len(lanes)
        for index, lane in enumerate(lanes):
            plan.slot[index], plan.epoch[index], plan.request[index] = (
                lane.slot,
                self.epochs[lane.slot],
                100 + lane.slot,
            )
            plan.ceiling[index], plan.page_table[index] = lane.ceiling, self.pages(lane.slot)
            plan.copy_anchor[index], plan.copy_length[index] = lane.anchor, len(lane.copies)
            plan.copy_tokens[index, : len(lane.copies)] = lane.copies
            plan.copy_source[index] = lane.source
            plan.export_slot[index], plan.export_boundary[index] = lane.export_slot, lane.export_boundary

    def round(self, lanes: list[LanePlan], width: int, kind: Kind = "speculative") -> dict[int, Record]:
        """One round of these lanes at the captured width."""
        batch = next(b for b, w in self.manifest.capacities(kind) if b >= len(lanes) and w == width)
        graph = self.manifest.index_of(kind, batch, width)
        plan = self.plan(graph)
        self.fill_lanes(plan, lanes)
        return self.replay(graph)

    def start(
        self,
        slot: int,
        prompt: tuple[int, ...],
        sampling: Sampling,
        budget: int = 64,
        end_ids: tuple[int, ...] = (),
    ) -> Record:
        """Init and the whole prompt; returns the record of its last chunk."""
        self.init(slot, len(prompt), sampling, budget, end_ids)
        largest = max(tokens for _, tokens in self.manifest.capacities("prefill"))
        for start in range(0, len(prompt), largest):
            part = prompt[start : start + largest]
            record = self.chunk(slot, start, part, final=int(start + len(part) == len(prompt)))
        return record


def host_of(recipe: Recipe, manifest: Manifest) -> Host:
    """A host over a freshly loaded model, which needs no files (the fixtures' recipes)."""
    from pathlib import Path

    geometry = manifest.geometry
    config = LoadConfig(True, geometry.concurrency, geometry.pages, geometry.snapshot_slots)
    loaded = recipe.load(Path(), manifest, config)
    plans = plan_layout(geometry, largest_chunk(manifest))
    completions = completion_layout(geometry)
    plan_bytes = memoryview(bytearray(FRAMES * plans.nbytes))
    completion_bytes = memoryview(bytearray(FRAMES * completions.nbytes))
    blank_plans(plans, plan_bytes)
    catalog = Catalog(manifest, loaded.model, loaded.drafter, (plans, completions), plan_bytes, completion_bytes)
    catalog.capture()
    return Host(
        manifest,
        catalog,
        tuple(plan_frame(plans, plan_bytes, index) for index in range(FRAMES)),
        tuple(completion_frame(completions, completion_bytes, index) for index in range(FRAMES)),
    )
