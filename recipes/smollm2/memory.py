"""What a core will allocate, from its sizes alone. Pure arithmetic; used by export, `inspect` and the worker."""

from __future__ import annotations

from recipes.smollm2.architecture import Architecture, Settings, WeightFormat
from recipes.smollm2.weights import weight_bytes
from shared.manifest import PAGE_TOKENS, BillItem, Geometry

PAGE_ELEMENT_BYTES = 4
"""Keys and values are float32 (docs/log.md)."""
_DEVICE_ELEMENT_BYTES = 2
"""On a GPU weights, keys and values are bfloat16."""
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


def device_items(settings: Settings, pages: int, lanes: int, sampled: int, longest: int) -> tuple[BillItem, ...]:
    """The bill on a GPU, where int8 layers are widened: rows that are sampled, and rows of the longest chunk."""
    a = settings.architecture
    keys, inner, hidden = a.heads.planes * a.head_size, a.intermediate_size, a.hidden_size
    queries, table = a.query_heads * a.head_size, -(-a.context_length // PAGE_TOKENS)
    # Stream and sums in float32; projections, attention and the gated layer in bfloat16.
    rows = max(sampled, longest) * (8 * hidden + 2 * (keys + 4 * queries + 3 * inner))
    parts = lanes * 8 * a.query_heads * table * (a.head_size + 2) * 4
    return (
        BillItem("weights", device_weight_bytes(a, settings.weights)),
        BillItem("pages", page_bytes(a, pages + 1) * _DEVICE_ELEMENT_BYTES // PAGE_ELEMENT_BYTES),
        BillItem("position tables", a.context_length * a.head_size * 4),
        BillItem("logits", sampled * a.vocab_size * 4),
        BillItem("scratch, estimated", rows + parts),
    )


def device_weight_bytes(architecture: Architecture, form: WeightFormat) -> int:
    """Bytes that `read_device_weights` will hold in bfloat16."""
    shapes = architecture.tensors()
    if architecture.tied:
        shapes["head"] = shapes["embedding"]
    total = 0
    for name, shape in shapes.items():
        if len(shape) == 1:
            total += shape[0] * 4
        else:
            scaled = form != "float32" and name != "embedding"
            total += shape[0] * shape[1] * _DEVICE_ELEMENT_BYTES + shape[0] * 4 * scaled
    return total
