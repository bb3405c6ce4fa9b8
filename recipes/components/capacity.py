"""Which graphs a core captures: batch capacities, speculative shapes, and the whole catalog from them.

Pure arithmetic, used by every recipe's export. Source: mtp-design.md, "Graph catalog, control and scheduling".
"""

from __future__ import annotations

from typing import Literal

from recipes.declaration import PreparationConfig, Speculation
from shared.errors import ManifestError
from shared.manifest import MAXIMUM_DRAFTS, OPERATIONS, ExecutionGraph, Kind


def batch_capacities(concurrency: int) -> tuple[int, ...]:
    """Powers of two from one through the padded concurrency limit."""
    if concurrency < 1:
        raise ManifestError("concurrency must be at least one")
    return tuple(1 << bit for bit in range((concurrency - 1).bit_length() + 1))


def speculative_widths(config: PreparationConfig, speculation: Speculation) -> tuple[int, ...]:
    """Verification widths 1 .. K_max + 1 of a preparation. Raises `ManifestError` beyond the recipe's maximum."""
    drafts = speculation.default_drafts if config.draft_tokens is None else config.draft_tokens
    limit = min(speculation.maximum_drafts, MAXIMUM_DRAFTS)
    if not 0 <= drafts <= limit:
        raise ManifestError(f"draft tokens must be between 0 and {limit}, not {drafts}")
    return tuple(range(1, drafts + 2))


def speculative_shapes(concurrency: int, widths: tuple[int, ...], token_capacity: int) -> tuple[tuple[int, int], ...]:
    """(B, W): width one at every batch capacity, and each wider width where B * W fits the token capacity."""
    return tuple(
        (batch, width)
        for batch in batch_capacities(concurrency)
        for width in widths
        if width == 1 or batch * width <= token_capacity
    )


def _graph(kind: Kind, batch: int, tokens: int, enabled: bool | None = None) -> ExecutionGraph:
    return ExecutionGraph(
        operation=OPERATIONS[kind], kind=kind, batch_capacity=batch, token_capacity=tokens, speculation_enabled=enabled
    )


def catalog(config: PreparationConfig, speculation: Speculation) -> tuple[ExecutionGraph, ...]:
    """Every graph of a core, state operations first."""
    batches = batch_capacities(config.concurrency)
    shared = [_graph(kind, 1, 0) for kind in ("init", "resume", "snapshot", "restore")]
    prefill = [_graph("prefill", 1, bucket) for bucket in config.prefill_buckets]
    mixed = [_graph("mixed", batch, config.mixed_chunk) for batch in batches]
    decode = [_graph("decode", batch, 1, enabled=False) for batch in batches]
    source: Literal["learned", "copy"] = "learned" if speculation.learned else "copy"
    rounds = [
        ExecutionGraph(
            operation=OPERATIONS["speculative"],
            kind="speculative",
            batch_capacity=batch,
            token_capacity=width,
            draft_tokens=width - 1,
            verify_tokens=width,
            draft_source=source if width > 1 else "",
            speculation_enabled=True,
        )
        for batch, width in speculative_shapes(
            config.concurrency, speculative_widths(config, speculation), config.speculative_token_capacity
        )
    ]
    return tuple(shared + prefill + mixed + decode + rounds)
