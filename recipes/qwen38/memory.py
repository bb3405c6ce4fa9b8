"""What a core allocates, by kind, from its sizes alone. Pure arithmetic; used by `ignition` and the worker.

mtp-design.md, "Memory and compact recurrence", asks for the kinds. A device's format decides the bytes: the CPU's
reference arithmetic holds everything in float32, a GPU keeps weights as stored and pages, histories and residuals in
BF16. Recurrent matrices, their records and logits are float32 on both.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from recipes.components import nvfp4
from recipes.components.indexed_attention import ring_capacity
from recipes.components.safetensors_headers import BITS
from recipes.components.short_convolution import history_length
from recipes.qwen38.architecture import Architecture
from recipes.qwen38.inventory import ANY, FIXED, Spec, mtp_tensors, target_tensors
from recipes.qwen38.state import NGRAM_DILATION
from shared.manifest import MAXIMUM_DRAFTS, PAGE_TOKENS, BillItem

_FLOAT, _LONG = 4, 8
_JOINED = {
    ".input_mix_weight_down.weight": ".block_inject_weight.weight",
    ".gate.weight": ".shared_expert_gate.weight",
}
"""Matrices that a device holds as one with what stands behind them, if it is there."""
_MATRIX_DTYPES = frozenset({"U8", "F8_E4M3"})
_WIDTH = MAXIMUM_DRAFTS + 1
"""Rows of a request that a round keeps candidates for, whatever width it has: all variants share one horizon."""


@dataclass(frozen=True, slots=True)
class Format:
    """`element`: bytes of a key, history or residual element; `packed`: weights as stored rather than float32."""

    element: int
    packed: bool


REFERENCE, PACKED = Format(_FLOAT, packed=False), Format(2, packed=True)


@dataclass(frozen=True, slots=True)
class Counts:
    """How much a core holds: pages, request slots, snapshot rows, and rows of its largest prompt chunk.

    `positions` of the longest request, for a device's table of rotations; the CPU has none.
    """

    pages: int
    slots: int
    snapshots: int
    chunk: int
    positions: int = 0


def _is_table(name: str) -> bool:
    return ".ngram_embedding." in name


def weight_bytes(specs: dict[str, Spec], form: Format) -> int:
    """Bytes of loaded tensors."""
    total = 0
    for name, spec in specs.items():
        count = prod(0 if size == ANY else size for size in spec.shape)
        if form.packed:
            total += count * BITS[spec.dtypes[0]] // 8
        elif name.endswith(".weight"):
            packed = spec.dtypes == ("U8",)
            total += count * (2 if packed else 1) * _FLOAT
        elif spec.dtypes[0] not in _MATRIX_DTYPES and "scale" not in name:
            total += count * _FLOAT
    return total


def widened_bytes(specs: dict[str, Spec]) -> int:
    """What a device's weights take beyond their stored bytes.

    Vectors and convolutions are float32 there, scales of experts are decoded, and scales of activations left out.
    Joined matrices have lines of zeros up to a multiple of eight.
    """
    total = 0
    for name, spec in specs.items():
        count = prod(0 if size == ANY else size for size in spec.shape)
        if name.endswith(FIXED):
            total += prod(specs[f"{name.removesuffix(FIXED)}.weight"].shape) * 2 // nvfp4.BLOCK - count
        elif name.endswith(".input_scale"):
            total -= count * _FLOAT
        elif spec.dtypes[0] == "BF16" and len(spec.shape) != 2:
            total += count * (_FLOAT - BITS["BF16"] // 8)
        for ending, joined in _JOINED.items():
            if name.endswith(ending):
                beside = specs.get(name.removesuffix(ending) + joined)
                lines = spec.shape[0] + (beside.shape[0] if beside is not None else 0)
                total += -lines % 8 * spec.shape[1] * BITS[spec.dtypes[0]] // 8
    return total


@lru_cache(maxsize=8)
def device_extra(a: Architecture, drafter: bool) -> int:
    """`widened_bytes` of the target, embedding tables aside, and of a drafter."""
    own = {name: spec for name, spec in target_tensors(a).items() if not _is_table(name)}
    return widened_bytes(own) + (widened_bytes(mtp_tensors(a)) if drafter else 0)


@lru_cache(maxsize=8)
def loaded_bytes(a: Architecture, form: Format) -> tuple[int, int]:
    """Bytes of the target's weights, embedding tables aside, and of the drafter's. There are 375,000 tensors."""
    own = {name: spec for name, spec in target_tensors(a).items() if not _is_table(name)}
    return weight_bytes(own, form), weight_bytes(mtp_tensors(a), form)


def sparse_layers(a: Architecture) -> int:
    """Layers of the target that attend; all others recur."""
    return sum(a.is_sparse(layer) for layer in range(a.num_hidden_layers))


def token_bytes(a: Architecture, layers: int, form: Format) -> int:
    """Bytes of a cached token over `layers` sparse-attention layers: key, value, its share of a group's key."""
    token = 2 * a.num_key_value_heads * a.head_dim + a.indexer_head_dim // a.indexer_compress_ratio
    return layers * token * form.element


def matrix_bytes(a: Architecture) -> int:
    """Bytes of the target's recurrent matrices after one position: a request's committed ones, or a column's."""
    heads = a.linear_num_value_heads * a.linear_key_head_dim * a.linear_value_head_dim
    return (a.num_hidden_layers - sparse_layers(a)) * heads * _FLOAT


def record_bytes(a: Architecture, form: Format) -> tuple[BillItem, ...]:
    """What one verified row leaves instead of a column of matrices; the CPU keeps a key for each value head."""
    layers = a.num_hidden_layers - sparse_layers(a)
    heads = a.linear_num_key_heads if form.packed else a.linear_num_value_heads
    return (
        BillItem("corrections", layers * a.linear_value_width * _FLOAT),
        BillItem("normalised keys", layers * heads * a.linear_key_head_dim * _FLOAT),
        BillItem("decays", layers * a.linear_num_value_heads * _FLOAT),
        BillItem("convolution inputs", layers * a.convolution_width * form.element),
    )


def residual_bytes(a: Architecture, rows: int, form: Format) -> int:
    """Bytes of the target's residual streams of `rows` rows, which must survive until the drafter has absorbed them."""
    return rows * a.streams_width * form.element


def history_bytes(a: Architecture, drafter: bool, form: Format) -> int:
    """Bytes of a row's histories: convolutions, n-grams, its tokens, rings of raw index keys, the drafter's count."""
    sparse = sparse_layers(a)
    convolution = (a.num_hidden_layers - sparse) * history_length(a.linear_conv_kernel_dim) * a.convolution_width
    ngrams = history_length(a.ple_conv_kernel_size, NGRAM_DILATION) * a.streams_width
    ring = ring_capacity(a.indexer_compress_ratio, MAXIMUM_DRAFTS) * (a.indexer_head_dim * form.element + _LONG)
    return (convolution + ngrams) * form.element + (sparse + drafter) * ring + (a.ngram_size - 1 + drafter) * _LONG


def row_bytes(a: Architecture, drafter: bool, form: Format = REFERENCE) -> int:
    """Bytes of one slot or snapshot row: all state of a prefix but its pages."""
    tail = residual_bytes(a, 1, form) if drafter else 0
    return matrix_bytes(a) + history_bytes(a, drafter, form) + tail


def items(a: Architecture, drafter: bool, counts: Counts, form: Format) -> tuple[BillItem, ...]:
    """The bill by kind, in bytes. Without a drafter its lines are absent; embedding tables have lines of their own.

    Scratch is an estimate: four buffers of the widest rows stand for what operators take and give back in a round.
    """
    target, mtp = loaded_bytes(a, form)
    rows, slots = counts.slots * _WIDTH, counts.slots
    cached = counts.pages * PAGE_TOKENS
    widest = max(a.convolution_width, 2 * a.num_attention_heads * a.head_dim, a.streams_width)
    draft = (
        BillItem("weights, drafter", mtp),
        BillItem("pages, draft layer", cached * token_bytes(a, 1, form)),
        BillItem("draft tails", slots * residual_bytes(a, 1, form)),
        BillItem("draft laws", slots * MAXIMUM_DRAFTS * a.vocab_size * _FLOAT),
    )
    # What goes nowhere goes to a row and a page of nobody; half of a head's turning part is cosines, half sines.
    nobody = row_bytes(a, drafter, form) + PAGE_TOKENS * token_bytes(a, sparse_layers(a) + drafter, form)
    device = (
        BillItem("weights, widened", device_extra(a, drafter)),
        BillItem("a row and a page of nobody", nobody),
        BillItem("rotations", counts.positions * a.rotary_size * _FLOAT),
    )
    return (
        BillItem("weights, target", target),
        BillItem("pages, target layers", cached * token_bytes(a, sparse_layers(a), form)),
        BillItem("recurrent matrices", slots * matrix_bytes(a)),
        BillItem("histories and rings", slots * history_bytes(a, drafter, form)),
        *(BillItem(f"{item.name} of a round", rows * item.nbytes) for item in record_bytes(a, form)),
        *(draft if drafter else ()),
        *(device if form.packed else ()),
        BillItem("snapshots", counts.snapshots * row_bytes(a, drafter, form)),
        BillItem("residual streams", residual_bytes(a, counts.chunk + rows, form)),
        BillItem("logits", rows * a.vocab_size * _FLOAT),
        BillItem("scratch, estimated", 4 * max(counts.chunk, rows) * widest * form.element),
    )


def sizes(a: Architecture, form: Format) -> tuple[tuple[str, int], ...]:
    """What single things take, as mtp-design.md gives them, and what the compact recurrence saves. Bytes."""
    record = sum(item.nbytes for item in record_bytes(a, form))
    columns = matrix_bytes(a)
    context, four, further = a.max_position_embeddings, 4, 2 * MAXIMUM_DRAFTS + 1
    return (
        ("recurrent matrices of a position", columns),
        ("records of a verified row instead", record),
        (f"columns of {four} requests, {MAXIMUM_DRAFTS} positions more", four * MAXIMUM_DRAFTS * columns),
        (f"records of {four} requests, {_WIDTH} rows", four * _WIDTH * record),
        (f"columns of {four} requests, {further} positions more", four * further * columns),
        ("a cached token, target layers", token_bytes(a, sparse_layers(a), form)),
        ("a cached token, draft layer", token_bytes(a, 1, form)),
        (f"a context of {context:,} tokens, draft layer", context * token_bytes(a, 1, form)),
        ("histories and rings of a request", history_bytes(a, True, form)),
        ("draft tail of a request", residual_bytes(a, 1, form)),
        ("residual streams of 4,096 rows", residual_bytes(a, 4096, form)),
        ("a snapshot, pages aside", row_bytes(a, True, form)),
    )
