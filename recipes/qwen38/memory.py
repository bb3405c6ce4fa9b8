"""What a core allocates on the CPU, by kind, from its sizes alone. Pure arithmetic; used by export and the worker.

mtp-design.md, "Memory and compact recurrence", asks for the kinds: weights, pages, recurrent rows, snapshots, scratch.
"""

from __future__ import annotations

from math import prod

from recipes.components.indexed_attention import ring_capacity
from recipes.components.safetensors_headers import BITS
from recipes.components.short_convolution import history_length
from recipes.qwen38.architecture import Architecture
from recipes.qwen38.inventory import ANY, Spec, mtp_tensors, target_tensors
from recipes.qwen38.state import NGRAM_DILATION
from shared.manifest import MAXIMUM_DRAFTS, PAGE_TOKENS, BillItem

_FLOAT, _LONG = 4, 8
_MATRIX_DTYPES = frozenset({"U8", "F8_E4M3"})


def _loaded_bytes(specs: dict[str, Spec]) -> int:
    """Bytes once dequantised to float32; the n-gram table stays packed."""
    total = 0
    for name, spec in specs.items():
        count = prod(0 if size == ANY else size for size in spec.shape)
        if ".ngram_embedding." in name:
            total += count * BITS[spec.dtypes[0]] // 8
        elif name.endswith(".weight"):
            packed = spec.dtypes == ("U8",)
            total += count * (2 if packed else 1) * _FLOAT
        elif spec.dtypes[0] not in _MATRIX_DTYPES and "scale" not in name:
            total += count * _FLOAT
    return total


def page_bytes(a: Architecture, layers: int) -> int:
    """Bytes of one page over `layers` sparse-attention layers: keys, values, and a key for each group of tokens."""
    token = 2 * a.num_key_value_heads * a.head_dim + a.indexer_head_dim // a.indexer_compress_ratio
    return layers * PAGE_TOKENS * token * _FLOAT


def row_bytes(a: Architecture, drafter: bool) -> int:
    """Bytes of one slot or snapshot row."""
    sparse = sum(a.is_sparse(layer) for layer in range(a.num_hidden_layers))
    matrix = a.linear_num_value_heads * a.linear_key_head_dim * a.linear_value_head_dim
    convolution = history_length(a.linear_conv_kernel_dim) * a.convolution_width
    ngrams = history_length(a.ple_conv_kernel_size, NGRAM_DILATION) * a.streams_width
    ring = ring_capacity(a.indexer_compress_ratio, MAXIMUM_DRAFTS) * (a.indexer_head_dim * _FLOAT + _LONG)
    recurrent = (a.num_hidden_layers - sparse) * (matrix + convolution) + ngrams
    tail = a.streams_width if drafter else 0
    return (recurrent + tail) * _FLOAT + (sparse + drafter) * ring + (a.ngram_size - 1) * _LONG


def items(a: Architecture, drafter: bool, pages: int, slots: int, snapshots: int) -> tuple[BillItem, ...]:
    """The bill. Records of a round (keys, corrections, decays of eight rows a lane) count as scratch."""
    sparse = sum(a.is_sparse(layer) for layer in range(a.num_hidden_layers)) + drafter
    record = a.linear_num_value_heads * (a.linear_key_head_dim + a.linear_value_head_dim + 1) + a.convolution_width
    widest = max(a.convolution_width, 2 * a.num_attention_heads * a.head_dim, a.streams_width)
    rows = slots * (MAXIMUM_DRAFTS + 1)
    scratch = rows * ((a.num_hidden_layers - sparse + drafter) * record + 4 * widest + 2 * a.vocab_size) * _FLOAT
    return (
        BillItem("target weights", _loaded_bytes(target_tensors(a))),
        *((BillItem("drafter weights", _loaded_bytes(mtp_tensors(a))),) if drafter else ()),
        BillItem("pages", pages * page_bytes(a, sparse)),
        BillItem("recurrent rows", slots * row_bytes(a, drafter)),
        BillItem("snapshots", snapshots * row_bytes(a, drafter)),
        BillItem("scratch", scratch),
    )
