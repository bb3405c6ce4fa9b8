"""Plan and completion frames: their layout as data, and typed views over the bytes.

A frame lies in a region (`shared/regions.py`). The scheduler writes plan frames, the worker's graphs read them; the
worker writes completion frames, the scheduler reads them. A plan states the round it is for at head and tail, so a
torn or foreign frame is seen (architecture.md, sections 2 and 3). Every field is 8-byte aligned; numpy only, no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum, IntFlag
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.errors import ContractBreach
from shared.manifest import MAXIMUM_DRAFTS, Geometry

FRAMES = 2
"""Frames of each kind; round r uses frame r & 1."""
ROW_TOKENS = MAXIMUM_DRAFTS + 1
METADATA = 16
COPY_TOKENS = 2 * ROW_TOKENS + 2
"""Continuation of at least 2W tokens, led by the two known ones that anchor it."""
TOP_LOGPROBS = 20
MAXIMUM_BIAS = 300
MAXIMUM_END_IDS = 16

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Field:
    """One array of a frame: name, dtype string, shape, byte offset."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Layout:
    """The fields of one frame, in order, and its size in bytes (a multiple of 64)."""

    fields: tuple[Field, ...]
    nbytes: int

    def offset_of(self, name: str) -> int:
        """Byte offset of a field. Raises `ContractBreach` for an unknown one."""
        for field in self.fields:
            if field.name == name:
                return field.offset
        raise ContractBreach(f"a frame has no field {name}")

    def arrays(self, buffer: memoryview, index: int) -> dict[str, Array]:
        """Views over frame `index` of a buffer that holds frames back to back."""
        start = index * self.nbytes
        if len(buffer) < start + self.nbytes:
            raise ContractBreach(f"region of {len(buffer)} bytes cannot hold frame {index} of {self.nbytes} bytes")
        return {
            f.name: np.frombuffer(buffer[start + f.offset : start + f.offset + f.nbytes], dtype=f.dtype).reshape(
                f.shape
            )
            for f in self.fields
        }


def arranged(spec: tuple[tuple[str, str, tuple[int, ...]], ...]) -> Layout:
    """The layout of these fields (name, dtype, shape), one behind the other, each at a multiple of 8 bytes."""
    offset, found = 0, []
    for name, dtype, shape in spec:
        field = Field(name, dtype, shape, offset)
        found.append(field)
        offset += -(-field.nbytes // 8) * 8
    return Layout(tuple(found), -(-offset // 64) * 64)


class Source(IntFlag):
    """Where accepted and offered drafts of a round came from; bits of `Meta.SOURCES` and of a plan's `copy_source`."""

    NONE = 0
    LEARNED = 1
    HISTORY = 2
    PROMPT = 4
    FORCED = 8


class Status(IntEnum):
    """Terminal status of a request slot on the device."""

    RUNNING = 0
    ENDED = 1
    """An end token was emitted; it stays pending."""
    LENGTH = 2
    """The output budget is spent."""


class Fault(IntFlag):
    """Error bits of a record. Any bit makes the lane's round a no-op."""

    NONE = 0
    TORN_PLAN = 1
    UNEXPECTED_PLAN = 2
    STALE_EPOCH = 4
    BAD_SLOT = 8
    BAD_TOKEN = 16
    ROW_SERVER = 32
    MASK_NOT_READY = 64
    NOT_FINITE = 128
    WRONG_PREFIX = 256
    """A restore found another prefix than its plan counted on."""
    MISSING_HISTORY = 512
    """State of the prefix that a model needed was not held."""


class Meta(IntEnum):
    """The sixteen metadata fields of a record, by column; the token fields follow."""

    SLOT = 0
    EPOCH = 1
    REQUEST = 2
    CONSUMED = 3
    GENERATED = 4
    VISIBLE = 5
    """Generated tokens less a terminal end token: what a client may see."""
    STATUS = 6
    EMITTED = 7
    OFFERED = 8
    ACCEPTED = 9
    SOURCES = 10
    DRAFT_CACHE = 11
    WIDTH = 12
    SEQUENCE = 13
    FAULTS = 14
    COPIED = 15
    """How many of the accepted drafts were copied ones."""


@dataclass(frozen=True, slots=True)
class PlanFrame:
    """Views of one plan frame. L = lanes (concurrency), P = pages of a request, C = largest chunk.

    `init_*` describes the one request that an init graph admits, `chunk_*` the chunk of prefill and mixed graphs, or
    the stretch of a cached prefix that a restore graph notes for penalties,
    `copy_tokens[l]` a continuation whose first token belongs at absolute position `copy_anchor[l]`.
    """

    head: Array
    graph: Array
    lanes: Array
    slot: Array
    epoch: Array
    request: Array
    ceiling: Array
    """Most rows this lane may verify, 1 .. W."""
    copy_anchor: Array
    copy_length: Array
    copy_source: Array
    copy_tokens: Array
    page_table: Array
    export_slot: Array
    """Snapshot row for a boundary export, or -1."""
    export_boundary: Array
    chunk_slot: Array
    chunk_epoch: Array
    chunk_request: Array
    chunk_start: Array
    chunk_length: Array
    chunk_final: Array
    """1: the chunk ends the prompt and the first token is drawn; 0: more chunks follow. 2: it ends a replayed history
    (preemption): the last chunk token precedes the pending one, and `chunk_pending` becomes pending unsampled. A chunk
    that is scored never ends a prompt; there `chunk_pending` is the token behind it, which its last row scores."""
    chunk_pending: Array
    chunk_page_table: Array
    chunk_export_slot: Array
    chunk_tokens: Array
    init_slot: Array
    init_epoch: Array
    init_request: Array
    init_integers: Array
    init_floats: Array
    init_end_ids: Array
    init_bias_ids: Array
    init_bias_values: Array
    snapshot_row: Array
    """The row that a restore reads and a snapshot writes; -1: none."""
    restore_length: Array
    """Consumed tokens of the slot once a restore is over: what its row must hold."""
    tail: Array


class InitInt(IntEnum):
    """Columns of `init_integers`, int64. `SEED` holds the unsigned seed's bits."""

    SEED = 0
    TOP_K = 1
    BUDGET = 2
    """Most tokens the request may still emit, counted from its first generated one."""
    MIN_TOKENS = 3
    END_COUNT = 4
    BIAS_COUNT = 5
    TOP_LOGPROBS = 6
    """-1: no log probabilities; else how many alternatives."""
    PROMPT_LENGTH = 7
    """Chunk tokens at positions below it are prompt; from it on they are generated (replayed after a preemption)."""
    PREFIX = 8
    """Tokens whose state lies in the request's pages already, where pages alone continue a prefix; else 0."""


class InitFloat(IntEnum):
    """Columns of `init_floats`, float32."""

    TEMPERATURE = 0
    TOP_P = 1
    MIN_P = 2
    REPETITION = 3
    FREQUENCY = 4
    PRESENCE = 5


@dataclass(frozen=True, slots=True)
class CompletionFrame:
    """Views of one completion frame: one int64 record a slot and what goes with its tokens. S = slots.

    A round that scores a chunk has no lanes; its rows' log probabilities lie one behind the other over all slots.
    """

    head: Array
    records: Array
    logprobs: Array
    top_ids: Array
    top_logprobs: Array
    tail: Array


def plan_layout(geometry: Geometry, largest_chunk: int) -> Layout:
    """Layout of a plan frame for a core: `largest_chunk` is its largest prefill or mixed chunk in tokens."""
    lanes, pages = geometry.concurrency, geometry.pages_per_request
    one = (1,)
    return arranged(
        (
            ("head", "<i8", one),
            ("graph", "<i8", one),
            ("lanes", "<i8", one),
            ("slot", "<i8", (lanes,)),
            ("epoch", "<i8", (lanes,)),
            ("request", "<i8", (lanes,)),
            ("ceiling", "<i8", (lanes,)),
            ("copy_anchor", "<i8", (lanes,)),
            ("copy_length", "<i8", (lanes,)),
            ("copy_source", "<i8", (lanes,)),
            ("copy_tokens", "<i4", (lanes, COPY_TOKENS)),
            ("page_table", "<i4", (lanes, pages)),
            ("export_slot", "<i8", (lanes,)),
            ("export_boundary", "<i8", (lanes,)),
            ("chunk_slot", "<i8", one),
            ("chunk_epoch", "<i8", one),
            ("chunk_request", "<i8", one),
            ("chunk_start", "<i8", one),
            ("chunk_length", "<i8", one),
            ("chunk_final", "<i8", one),
            ("chunk_pending", "<i8", one),
            ("chunk_page_table", "<i4", (pages,)),
            ("chunk_export_slot", "<i8", one),
            ("chunk_tokens", "<i4", (largest_chunk,)),
            ("init_slot", "<i8", one),
            ("init_epoch", "<i8", one),
            ("init_request", "<i8", one),
            ("init_integers", "<i8", (len(InitInt),)),
            ("init_floats", "<f4", (len(InitFloat),)),
            ("init_end_ids", "<i4", (MAXIMUM_END_IDS,)),
            ("init_bias_ids", "<i4", (MAXIMUM_BIAS,)),
            ("init_bias_values", "<f4", (MAXIMUM_BIAS,)),
            ("snapshot_row", "<i8", one),
            ("restore_length", "<i8", one),
            ("tail", "<i8", one),
        )
    )


def completion_layout(geometry: Geometry) -> Layout:
    """Layout of a completion frame for a core."""
    slots = geometry.concurrency
    return arranged(
        (
            ("head", "<i8", (1,)),
            ("records", "<i8", (slots, METADATA + ROW_TOKENS)),
            ("logprobs", "<f4", (slots, ROW_TOKENS)),
            ("top_ids", "<i4", (slots, ROW_TOKENS, TOP_LOGPROBS)),
            ("top_logprobs", "<f4", (slots, ROW_TOKENS, TOP_LOGPROBS)),
            ("tail", "<i8", (1,)),
        )
    )


def plan_frame(layout: Layout, buffer: memoryview, index: int) -> PlanFrame:
    """Typed views of plan frame `index`."""
    arrays = layout.arrays(buffer, index)
    return PlanFrame(**{f.name: arrays[f.name] for f in fields(PlanFrame)})


def blank_plans(layout: Layout, buffer: memoryview) -> None:
    """Marks all plan frames as written for no round: zeroed memory would be a valid, empty plan for round 0."""
    for index in range(FRAMES):
        frame = plan_frame(layout, buffer, index)
        frame.head[0] = frame.tail[0] = -1


def completion_frame(layout: Layout, buffer: memoryview, index: int) -> CompletionFrame:
    """Typed views of completion frame `index`."""
    arrays = layout.arrays(buffer, index)
    return CompletionFrame(**{f.name: arrays[f.name] for f in fields(CompletionFrame)})
