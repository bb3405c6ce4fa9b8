"""Which graphs a core captures: batch capacities, speculative shapes, the whole catalog from them; and its geometry.

Pure arithmetic, used by every recipe's export. Source: mtp-design.md, "Graph catalog, control and scheduling".
"""

from __future__ import annotations

from typing import Literal

import msgspec

from recipes.declaration import PreparationConfig, Speculation
from shared.errors import ManifestError
from shared.manifest import MAXIMUM_DRAFTS, OPERATIONS, ExecutionGraph, Geometry, Kind, at_least, scored_rows

SCORED_ROWS = 64
"""Most prompt tokens that a graph scores at once: their logits are all there at the same time."""


def batch_capacities(concurrency: int) -> tuple[int, ...]:
    """Powers of two from one through the padded concurrency limit."""
    at_least(1, "concurrency", concurrency)
    return tuple(1 << bit for bit in range((concurrency - 1).bit_length() + 1))


def speculative_widths(config: PreparationConfig, speculation: Speculation) -> tuple[int, ...]:
    """Verification widths of a preparation: the chosen set, or 1 .. K_max + 1; width one alone without MTP.

    Raises `ManifestError` for a set that does not ascend from one, for drafts beyond the recipe's maximum, and for
    wishes that contradict one another.
    """
    limit = min(speculation.maximum_drafts, MAXIMUM_DRAFTS)
    drafts, chosen = config.draft_tokens, config.speculative_widths
    if not config.mtp:
        if config.mtp_only:
            raise ManifestError("--mtp-only and --no-mtp exclude each other: each leaves out what the other prepares")
        if drafts is not None or chosen is not None:
            raise ManifestError("a core without MTP (--no-mtp) has neither draft tokens nor speculative widths")
        return (1,)
    if drafts is not None and not 0 <= drafts <= limit:
        raise ManifestError(f"draft tokens must be between 0 and {limit}, not {drafts}")
    if chosen is None:
        return tuple(range(1, (speculation.default_drafts if drafts is None else drafts) + 2))
    if not chosen or chosen[0] != 1 or list(chosen) != sorted(set(chosen)) or chosen[-1] > limit + 1:
        shown = ", ".join(map(str, chosen))
        raise ManifestError(f"speculative widths must ascend from 1 to at most {limit + 1}, not {shown or 'none'}")
    if drafts is not None and drafts != chosen[-1] - 1:
        raise ManifestError(f"the widest of the speculative widths drafts {chosen[-1] - 1} tokens, not {drafts}")
    return chosen


def speculative_shapes(concurrency: int, widths: tuple[int, ...], token_capacity: int) -> tuple[tuple[int, int], ...]:
    """(B, W): width one at every batch capacity, and each wider width where B * W fits the token capacity."""
    return tuple(
        (batch, width)
        for batch in batch_capacities(concurrency)
        for width in widths
        if width == 1 or batch * width <= token_capacity
    )


def most_rows(graphs: tuple[ExecutionGraph, ...]) -> int:
    """Rows of the largest round: a whole chunk beside all lanes, or every lane at its width."""
    chunks = {"prefill": 0, "scored_prefill": 0, "mixed": 1}
    return max(
        (
            graph.token_capacity + chunks[graph.kind] * graph.batch_capacity
            if graph.kind in chunks
            else graph.batch_capacity * max(graph.verify_tokens, 1)
            for graph in graphs
        ),
        default=1,
    )


def _graph(kind: Kind, batch: int, tokens: int, enabled: bool | None = None) -> ExecutionGraph:
    return ExecutionGraph(
        operation=OPERATIONS[kind], kind=kind, batch_capacity=batch, token_capacity=tokens, speculation_enabled=enabled
    )


def _modes(config: PreparationConfig, speculation: Speculation) -> tuple[bool | None, ...]:
    """`speculation_enabled` of each family of prompt graphs.

    Those of the speculative mode absorb into a draft cache, those of the ordinary mode leave it alone. Without a
    learned drafter there is nothing to absorb, and one family serves both modes.
    """
    if not config.mtp:
        return (False,)
    if config.mtp_only:
        return (True,)
    return (True, False) if speculation.learned else (None,)


def _prompts(config: PreparationConfig, enabled: bool | None) -> list[ExecutionGraph]:
    prefill = [_graph("prefill", 1, bucket, enabled) for bucket in config.prefill_buckets]
    scored = _graph("scored_prefill", 1, min(scored_rows(config.concurrency), SCORED_ROWS), enabled)
    mixed = [_graph("mixed", batch, config.mixed_chunk, enabled) for batch in batch_capacities(config.concurrency)]
    return [*prefill, scored, *mixed]


def _check(config: PreparationConfig, widths: tuple[int, ...]) -> None:
    """Raises `ManifestError` for sizes that no graph can have."""
    at_least(1, "context length", config.context_length)
    at_least(1, "concurrency", config.concurrency)
    at_least(1, "mixed chunk", config.mixed_chunk)
    at_least(0, "snapshot slots", config.snapshot_slots)
    buckets, capacity = config.prefill_buckets, config.speculative_token_capacity
    if not buckets or buckets[0] < 1 or list(buckets) != sorted(set(buckets)):
        shown = ", ".join(map(str, buckets))
        raise ManifestError(f"prefill buckets must ascend from at least 1 token, not {shown or 'none'}")
    at_least(1, "speculative token capacity", capacity)
    if capacity < widths[-1]:
        raise ManifestError(f"a speculative token capacity of {capacity} rows has no graph of width {widths[-1]}")


def geometry_of(config: PreparationConfig, vocab_size: int, hidden_size: int) -> Geometry:
    """The sizes of a core; as many pages as all requests need at full context, unless the operator chose."""
    geometry = Geometry(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        context_length=config.context_length,
        concurrency=config.concurrency,
        pages=0 if config.pages is None else config.pages,
        snapshot_slots=config.snapshot_slots,
    )
    if config.pages is None:
        return msgspec.structs.replace(geometry, pages=geometry.pages_per_request * config.concurrency)
    return geometry


def catalog(config: PreparationConfig, speculation: Speculation) -> tuple[ExecutionGraph, ...]:
    """Every graph of a core: state operations, prompts (the speculative mode's first), decode, rounds.

    Raises `ManifestError` for a configuration that no core can have.
    """
    widths = speculative_widths(config, speculation)
    _check(config, widths)
    shared = [_graph(kind, 1, 0) for kind in ("init", "resume", "snapshot", "restore")]
    prompts = [graph for enabled in _modes(config, speculation) for graph in _prompts(config, enabled)]
    decode = [_graph("decode", batch, 1, False) for batch in batch_capacities(config.concurrency)]
    source: Literal["learned", "copy"] = "learned" if speculation.learned else "copy"
    shapes = speculative_shapes(config.concurrency, widths, config.speculative_token_capacity)
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
        for batch, width in shapes
    ]
    ordinary, speculative = [] if config.mtp_only else decode, rounds if config.mtp else []
    return tuple(shared + prompts + ordinary + speculative)
