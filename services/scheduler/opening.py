"""Puts the policy modules together for a core and the operator's configuration. No socket yet."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from services.scheduler.admission import Limits
from services.scheduler.config import SchedulerConfig
from services.scheduler.controller import AdaptiveWidth, FixedWidth
from services.scheduler.decoded_history import DecodedHistory
from services.scheduler.graphs import GraphTable, chosen_graphs
from services.scheduler.prefixes import Prefixes
from services.scheduler.roster import Roster
from shared.errors import ProcessError
from shared.manifest import Manifest, read

_INCARNATION_BITS = 31


@dataclass(frozen=True, slots=True)
class Opened:
    """What a loop needs. `digest` is SHA-256 of the manifest's bytes, `slots` the most requests that may run."""

    manifest: Manifest
    digest: str
    graphs: GraphTable
    roster: Roster
    slots: int
    incarnation: int


def open_core(config: SchedulerConfig, instance: int) -> Opened:
    """Reads the core and checks that it can be served as configured. Raises `ManifestError` or `ProcessError`."""
    manifest = read(config.core)
    digest = hashlib.sha256((config.core / "manifest.json").read_bytes()).hexdigest()
    graphs = chosen_graphs(manifest, config)
    geometry = manifest.geometry
    slots = config.concurrency or geometry.concurrency
    if slots > geometry.concurrency:
        raise ProcessError(f"this core was prepared for {geometry.concurrency} requests at once, not {slots}")
    limits = Limits(
        vocab_size=geometry.vocab_size,
        context_length=geometry.context_length,
        pages=geometry.pages,
        table_pages=geometry.pages_per_request,
        queue=config.queue_limit,
        scores=graphs.scored is not None,
    )
    drafting = graphs.draft_cap > 0
    history = manifest.history_drafts if config.history_drafts is None else config.history_drafts
    prompt = manifest.history_drafts if config.prompt_drafts is None else config.prompt_drafts
    incarnation = instance & ((1 << _INCARNATION_BITS) - 1)
    roster = Roster(
        limits,
        FixedWidth() if config.fixed(manifest.adaptive_verification) else AdaptiveWidth(),
        DecodedHistory() if history and drafting else None,
        prompt and drafting,
        incarnation,
        Prefixes(config.prefix_cache and graphs.continues, manifest.continuation_row_bytes > 0),
    )
    return Opened(manifest, digest, graphs, roster, slots, incarnation)
