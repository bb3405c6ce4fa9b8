"""The execution manifest, ABI 6: what a core holds, which graphs are captured from it, and what it needs.

`ignition export` writes it, the worker captures from it, scheduler and frontend read their limits from it. Pure data;
source of the graph fields: mtp-design.md, "Graph catalog, control and scheduling".
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import msgspec

from shared.errors import ManifestError, ProcessError

ABI = 6
PAGE_TOKENS = 64
MAXIMUM_DRAFTS = 7
"""The draft horizon that every variant retains: eight verification rows."""

REFUSED_OPERATIONS = frozenset({10, 11, 13})
"""Stand-alone proposal and verification graphs: not part of the contract."""

Kind = Literal[
    "prefill", "scored_prefill", "decode", "resume", "speculative", "mixed", "init", "restore", "snapshot", "vision"
]
STATE_KINDS: frozenset[Kind] = frozenset({"init", "resume", "restore", "snapshot"})
"""Operations on a slot's state, which take no tokens."""
CHUNK_KINDS: frozenset[Kind] = frozenset({"prefill", "scored_prefill", "mixed"})
"""Rounds that take a chunk of a prompt."""
_TABLE_NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")
OPERATIONS: dict[str, int] = {
    "prefill": 1,
    "scored_prefill": 2,
    "decode": 3,
    "resume": 4,
    "speculative": 5,
    "mixed": 6,
    "init": 7,
    "restore": 8,
    "snapshot": 9,
    "vision": 12,
}


class ExecutionGraph(msgspec.Struct, frozen=True):
    """One captured program. `token_capacity` is W for a speculative graph and the chunk for prompts."""

    operation: int
    kind: Kind
    batch_capacity: int
    token_capacity: int
    sampling_mode: Literal["general"] = "general"
    draft_tokens: int = 0
    verify_tokens: int = 0
    draft_source: Literal["", "copy", "learned"] = ""
    speculation_enabled: bool | None = None
    packed_token_capacity: int = 0
    confidence_width: int = 0


class Geometry(msgspec.Struct, frozen=True):
    """Sizes that the frame layouts and the page arithmetic follow from. Tokens and counts."""

    vocab_size: int
    hidden_size: int
    context_length: int
    concurrency: int
    pages: int
    snapshot_slots: int
    page_tokens: int = PAGE_TOKENS

    @property
    def pages_per_request(self) -> int:
        """Pages that a request of full context needs, its speculative window included."""
        return -(-(self.context_length + MAXIMUM_DRAFTS + 1) // self.page_tokens)


class GenerationDefaults(msgspec.Struct, frozen=True):
    """Sampling defaults of the checkpoint; explicit request values win."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0


class BillItem(msgspec.Struct, frozen=True):
    """One line of the memory bill, in bytes."""

    name: str
    nbytes: int


Storage = Literal["gpu", "ram", "disk"]
"""Where a table lies: device memory; host memory that the device reads; a file that a row server reads."""


class EmbeddingTable(msgspec.Struct, frozen=True):
    """A table whose rows may live off the device; reached through its mailbox (architecture.md, section 2).

    `mailbox_ids` are the most rows that one round asks for; `storage` is where it lies unless an operator chooses.
    """

    name: str
    rows: int
    row_bytes: int
    mailbox_ids: int
    storage: Storage = "gpu"

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.rows * self.row_bytes


class Manifest(msgspec.Struct, frozen=True):
    """The whole core. `settings` is the recipe's own JSON document, read by that recipe alone."""

    abi: int
    recipe: str
    model_name: str
    geometry: Geometry
    graphs: tuple[ExecutionGraph, ...]
    verification_widths: tuple[int, ...]
    speculative_token_capacity: int
    end_ids: tuple[int, ...]
    defaults: GenerationDefaults
    history_drafts: bool
    activation_policy: str
    bill: tuple[BillItem, ...]
    embedding_tables: tuple[EmbeddingTable, ...] = ()
    continuation_row_bytes: int = 0
    """State, pages aside, that a snapshot row must hold for a prefix to be continued; 0: its pages are enough."""
    adaptive_verification: bool = True
    """The policy of verification where the operator of a server chooses none."""
    settings: msgspec.Raw = msgspec.Raw(b"{}")

    @property
    def draft_tokens(self) -> int:
        """K_max of the prepared graphs."""
        return max(self.verification_widths) - 1

    def widths_of(self, batch: int) -> tuple[int, ...]:
        """Verification widths captured at batch capacity `batch`, ascending."""
        found = {
            graph.token_capacity
            for graph in self.graphs
            if graph.kind == "speculative" and graph.batch_capacity == batch
        }
        return tuple(sorted(found))

    def index_of(self, kind: Kind, batch: int, tokens: int) -> int:
        """Index of the graph with exactly this shape. Raises `ManifestError`."""
        for index, graph in enumerate(self.graphs):
            if (graph.kind, graph.batch_capacity, graph.token_capacity) == (kind, batch, tokens):
                return index
        raise ManifestError(f"no {kind} graph with batch {batch} and {tokens} tokens was prepared")

    def capacities(self, kind: Kind) -> tuple[tuple[int, int], ...]:
        """(batch, tokens) of each graph of a kind, ascending."""
        return tuple(sorted((g.batch_capacity, g.token_capacity) for g in self.graphs if g.kind == kind))


def storages(manifest: Manifest, chosen: Storage | None) -> dict[str, Storage]:
    """Where each embedding table lies, by its name: as the operator has `chosen`, else as the core says.

    Raises `ProcessError` for a choice without a table that it could be about.
    """
    if chosen is not None and not manifest.embedding_tables:
        raise ProcessError("this core has no embedding table that could lie anywhere: choose no storage for it")
    return {table.name: chosen or table.storage for table in manifest.embedding_tables}


def largest_chunk(manifest: Manifest) -> int:
    """Most prompt tokens that one round takes: the size of a plan frame's chunk field."""
    return max((g.token_capacity for g in manifest.graphs if g.kind in CHUNK_KINDS), default=1)


def scored_rows(concurrency: int) -> int:
    """Most prompt tokens that one round scores: as many as a completion frame has rows of log probabilities."""
    return concurrency * (MAXIMUM_DRAFTS + 1)


def check(manifest: Manifest) -> Manifest:
    """The manifest itself, if this version can serve it. Raises `ManifestError` naming the fault."""
    if manifest.abi != ABI:
        raise ManifestError(f"execution ABI {manifest.abi} is not {ABI}: export the core again")
    _check_sizes(manifest)
    _check_graphs(manifest)
    _check_tables(manifest.embedding_tables)
    return manifest


def at_least(least: int, what: str, value: int) -> None:
    """Raises `ManifestError`, which names `what`, for a smaller `value`."""
    if value < least:
        raise ManifestError(f"{what} must be at least {least}, not {value}")


def _check_sizes(manifest: Manifest) -> None:
    geometry = manifest.geometry
    at_least(1, "vocabulary size", geometry.vocab_size)
    at_least(1, "hidden size", geometry.hidden_size)
    at_least(1, "context length", geometry.context_length)
    at_least(1, "concurrency", geometry.concurrency)
    at_least(0, "snapshot slots", geometry.snapshot_slots)
    at_least(1, "speculative token capacity", manifest.speculative_token_capacity)
    if geometry.page_tokens != PAGE_TOKENS:
        raise ManifestError(f"pages of {geometry.page_tokens} tokens are not of {PAGE_TOKENS}")
    if geometry.pages < geometry.pages_per_request:
        raise ManifestError(
            f"a request of full context ({geometry.context_length} tokens) needs {geometry.pages_per_request} pages: "
            f"the page pool must have at least so many, not {geometry.pages}"
        )


def _check_graphs(manifest: Manifest) -> None:
    found: set[tuple[Kind, int, int, int, bool | None]] = set()
    for index, graph in enumerate(manifest.graphs):
        if graph.operation in REFUSED_OPERATIONS:
            raise ManifestError(f"graph {index}: unsupported graph operation {graph.operation}")
        if OPERATIONS[graph.kind] != graph.operation:
            raise ManifestError(f"graph {index}: operation {graph.operation} is not a {graph.kind} graph")
        if graph.kind == "speculative" and graph.verify_tokens != graph.draft_tokens + 1:
            raise ManifestError(f"graph {index}: {graph.draft_tokens} drafts need {graph.draft_tokens + 1} rows")
        if graph.kind == "speculative" and graph.verify_tokens != graph.token_capacity:
            raise ManifestError(
                f"graph {index}: width {graph.token_capacity} is not of {graph.verify_tokens} verified rows"
            )
        if graph.kind == "scored_prefill" and graph.token_capacity > scored_rows(manifest.geometry.concurrency):
            raise ManifestError(f"graph {index}: a frame has no room for the scores of {graph.token_capacity} tokens")
        at_least(1, f"graph {index}: batch capacity", graph.batch_capacity)
        at_least(0 if graph.kind in STATE_KINDS else 1, f"graph {index}: token capacity", graph.token_capacity)
        shape = (graph.kind, graph.batch_capacity, graph.token_capacity)
        key = (*shape, graph.packed_token_capacity, graph.speculation_enabled)
        if key in found:
            raise ManifestError(f"graph {index}: the {graph.kind} graph of this shape is there already")
        found.add(key)
    widths = manifest.verification_widths
    if not widths or widths[0] != 1 or list(widths) != sorted(set(widths)) or widths[-1] > MAXIMUM_DRAFTS + 1:
        raise ManifestError(f"verification widths {widths} must ascend from one to at most {MAXIMUM_DRAFTS + 1}")
    captured = {graph.token_capacity for graph in manifest.graphs if graph.kind == "speculative"} or {1}
    if captured != set(widths):
        raise ManifestError(f"verification widths {widths} are not those of the graphs, {tuple(sorted(captured))}")


def _check_tables(tables: tuple[EmbeddingTable, ...]) -> None:
    names = [table.name for table in tables]
    if len(set(names)) < len(names) or not all(_TABLE_NAME.fullmatch(name) for name in names):
        raise ManifestError(f"embedding tables {', '.join(names)} must have names of their own, of a-z, 0-9, . and -")
    for table in tables:
        if min(table.rows, table.row_bytes, table.mailbox_ids) < 1:
            raise ManifestError(f"embedding table {table.name} needs rows, bytes and a mailbox")


def encode(manifest: Manifest) -> bytes:
    """The manifest as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2)


def decode(data: bytes) -> Manifest:
    """A checked manifest. Raises `ManifestError`."""
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.MsgspecError as error:
        raise ManifestError(f"unreadable manifest: {error}") from error
    return check(manifest)


def read(core: Path) -> Manifest:
    """The manifest of a core folder. Raises `ManifestError`."""
    path = core / "manifest.json"
    try:
        return decode(path.read_bytes())
    except OSError as error:
        raise ManifestError(
            f"{core} is not a core: {error.strerror} ({path}). A checkpoint becomes one by `ignition export`"
        ) from error
