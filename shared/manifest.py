"""The execution manifest, ABI 6: what a core holds, which graphs are captured from it, and what it needs.

`ignition export` writes it, the worker captures from it, scheduler and frontend read their limits from it. Pure data;
source of the graph fields: mtp-design.md, "Graph catalog, control and scheduling".
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from shared.errors import ManifestError

ABI = 6
PAGE_TOKENS = 64
MAXIMUM_DRAFTS = 7
"""The draft horizon that every variant retains: eight verification rows."""

REFUSED_OPERATIONS = frozenset({10, 11, 13})
"""Stand-alone proposal and verification graphs: not part of the contract."""

Kind = Literal[
    "prefill", "scored_prefill", "decode", "resume", "speculative", "mixed", "init", "restore", "snapshot", "vision"
]
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
    """One captured program. `token_capacity` is W for a speculative graph and the chunk for prefill and mixed."""

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


class EmbeddingTable(msgspec.Struct, frozen=True):
    """A table whose rows may live off the device; reached through its mailbox (architecture.md, section 2)."""

    name: str
    rows: int
    row_bytes: int
    mailbox_ids: int
    storage: Literal["gpu", "ram", "disk"] = "gpu"


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


def largest_chunk(manifest: Manifest) -> int:
    """Most prompt tokens that one round takes: the size of a plan frame's chunk field."""
    return max((g.token_capacity for g in manifest.graphs if g.kind in ("prefill", "mixed")), default=1)


def check(manifest: Manifest) -> Manifest:
    """The manifest itself, if this version can serve it. Raises `ManifestError` naming the fault."""
    if manifest.abi != ABI:
        raise ManifestError(f"execution ABI {manifest.abi} is not {ABI}: export the core again")
    for index, graph in enumerate(manifest.graphs):
        if graph.operation in REFUSED_OPERATIONS:
            raise ManifestError(f"graph {index}: unsupported graph operation {graph.operation}")
        if OPERATIONS[graph.kind] != graph.operation:
            raise ManifestError(f"graph {index}: operation {graph.operation} is not a {graph.kind} graph")
        if graph.kind == "speculative" and graph.verify_tokens != graph.draft_tokens + 1:
            raise ManifestError(f"graph {index}: {graph.draft_tokens} drafts need {graph.draft_tokens + 1} rows")
    widths = manifest.verification_widths
    if not widths or widths[0] != 1 or list(widths) != sorted(set(widths)) or widths[-1] > MAXIMUM_DRAFTS + 1:
        raise ManifestError(f"verification widths {widths} must ascend from one to at most {MAXIMUM_DRAFTS + 1}")
    if manifest.geometry.pages < manifest.geometry.pages_per_request:
        raise ManifestError("the page pool is smaller than one request of full context")
    return manifest


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
        raise ManifestError(f"{core} is not a core: {error.strerror} ({path})") from error
