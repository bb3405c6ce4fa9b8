"""What a core will allocate, from its sizes alone. Pure arithmetic; used by export, `inspect` and the worker."""

from __future__ import annotations

from recipes.smollm2.architecture import Architecture, Settings
from recipes.smollm2.weights import weight_bytes
from shared.manifest import PAGE_TOKENS, BillItem, Geometry

PAGE_ELEMENT_BYTES = 4
"""Keys and values are float32 (docs/log.md)."""
_WORK_BYTES_OF_ROW = 40
"""Bytes a row and element of the widest layer or head: two int8 parts, sums in int32, and their float32 copies."""


def page_bytes(architecture: Architecture, pages: int) -> int:
    """Bytes of the page pools of all layers."""
    return (
        pages
        * PAGE_TOKENS
        * architecture.layers
        * architecture.heads.planes
        * architecture.head_size
        * PAGE_ELEMENT_BYTES
    )


def bill_of(settings: Settings, geometry: Geometry) -> tuple[BillItem, ...]:
    """The bill of a core at the sizes of `geometry`."""
    return items(settings, geometry.pages, geometry.concurrency)


def items(settings: Settings, pages: int, slots: int) -> tuple[BillItem, ...]:
    """Weights, pages, position tables, and the largest working set, an estimate: a chunk or all lanes' logits."""
    architecture = settings.architecture
    rows = 256 * 2 * architecture.intermediate_size
    logits = slots * 8 * architecture.vocab_size
    return (
        BillItem("weights", weight_bytes(architecture, settings.weights)),
        BillItem("pages", page_bytes(architecture, pages)),
        BillItem("position tables", architecture.context_length * architecture.head_size * 4),
        BillItem("working memory, estimated", max(rows, logits) * _WORK_BYTES_OF_ROW // 2),
    )
