"""Counts that an answer reports: token usage, and acceptance in vLLM's shape. Pure; frontend process.

Usage ends at the token at which text, ids and log probabilities end (cases.md, B04): `completion_tokens` counts
every generated token up to and including the end token or the one that completed a stop string.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import add

import msgspec

from shared.errors import ContractBreach
from shared.frames import Source
from shared.manifest import MAXIMUM_DRAFTS
from shared.messages.common import DraftCounts
from shared.messages.frontend import Delta

Lengths = dict[int, list[int]]
"""Drafts of a round to how many rounds accepted 0, 1, .. all of so many."""


class PromptDetails(msgspec.Struct, frozen=True):
    """Part of `usage`: prompt tokens whose state came from the prefix cache."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """OpenAI's `usage` object."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class SourceAcceptance(msgspec.Struct, frozen=True):
    """Drafts of one source."""

    num_draft_tokens: int
    num_accepted_draft_tokens: int


class SpeculativeDecoding(msgspec.Struct, frozen=True):
    """vLLM's per-request `metrics.speculative_decoding` (docs/features/speculative_decoding/acceptance_metrics.md).

    `by_source` is ours, and so is that several choices are summed, where vLLM reports nothing.
    """

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    acceptance_histogram_by_draft_length: dict[str, list[int]]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int
    by_source: dict[str, SourceAcceptance]


class Metrics(msgspec.Struct, frozen=True):
    """vLLM's `metrics` object at the root of an answer."""

    speculative_decoding: SpeculativeDecoding


def usage(prompt: int, completion: int, cached: int) -> Usage:
    """The usage of one answer, in tokens."""
    return Usage(prompt, completion, prompt + completion, PromptDetails(min(cached, prompt)))


def counts_until(delta: Delta, kept: int) -> DraftCounts:
    """The request's counts when only the first `kept` tokens of its last delta stand.

    A delta is one round's, drafts first: the index of an accepted draft in it is its depth. What was offered was
    offered; what lies beyond the cut was not accepted for anybody.
    """
    counts, depths = delta.counts, list(delta.counts.accepted_by_depth)
    cut = {Source.LEARNED: 0, Source.HISTORY: 0, Source.PROMPT: 0}
    for depth, bits in enumerate(delta.sources):
        if depth < kept or not bits:
            continue
        for source in cut:
            cut[source] += bool(bits & source)
        if depth < len(depths):
            depths[depth] = max(0, depths[depth] - 1)
    return msgspec.structs.replace(
        counts,
        accepted_learned=max(0, counts.accepted_learned - cut[Source.LEARNED]),
        accepted_history=max(0, counts.accepted_history - cut[Source.HISTORY]),
        accepted_prompt=max(0, counts.accepted_prompt - cut[Source.PROMPT]),
        accepted_by_depth=tuple(depths),
    )


def note_round(lengths: Lengths, before: DraftCounts, after: DraftCounts) -> None:
    """Adds the round between two counts of a request, if it drafted. Raises `ContractBreach`."""
    if after.rounds == before.rounds:
        return
    offered, accepted = after.offered - before.offered, after.accepted - before.accepted
    if not 0 <= accepted <= offered <= MAXIMUM_DRAFTS:
        raise ContractBreach(f"a round accepted {accepted} of {offered} drafts")
    lengths.setdefault(offered, [0] * (offered + 1))[accepted] += 1


def total(counts: Iterable[DraftCounts]) -> DraftCounts:
    """The counts of several requests together."""
    found = DraftCounts()
    for one in counts:
        found = DraftCounts(
            rounds=found.rounds + one.rounds,
            offered_learned=found.offered_learned + one.offered_learned,
            accepted_learned=found.accepted_learned + one.accepted_learned,
            offered_history=found.offered_history + one.offered_history,
            accepted_history=found.accepted_history + one.accepted_history,
            offered_prompt=found.offered_prompt + one.offered_prompt,
            accepted_prompt=found.accepted_prompt + one.accepted_prompt,
            accepted_by_depth=tuple(map(add, found.accepted_by_depth, one.accepted_by_depth)),
        )
    return found


def total_lengths(several: Iterable[Lengths]) -> Lengths:
    """The rounds of several requests together."""
    found: Lengths = {}
    for lengths in several:
        for offered, row in lengths.items():
            found[offered] = list(map(add, found.get(offered, [0] * len(row)), row))
    return found


def acceptance(counts: DraftCounts, lengths: Lengths, draft_tokens: int) -> SpeculativeDecoding:
    """vLLM's object for an answer, `draft_tokens` being the most that one round may draft."""
    depths = [*counts.accepted_by_depth, *([0] * draft_tokens)][:draft_tokens]
    reached = [counts.rounds, *depths, 0]
    histogram = [max(0, reached[j] - reached[j + 1]) for j in range(draft_tokens + 1)]
    return SpeculativeDecoding(
        mean_acceptance_length=1 + counts.accepted / counts.rounds if counts.rounds else 1.0,
        draft_acceptance_rate=counts.accepted / counts.offered if counts.offered else 0.0,
        acceptance_histogram=histogram,
        acceptance_histogram_by_draft_length={str(offered): lengths[offered] for offered in sorted(lengths)},
        num_spec_steps=counts.rounds,
        num_accepted_draft_tokens=counts.accepted,
        num_draft_tokens=counts.offered,
        num_spec_tokens=draft_tokens,
        by_source={
            "learned": SourceAcceptance(counts.offered_learned, counts.accepted_learned),
            "history": SourceAcceptance(counts.offered_history, counts.accepted_history),
            "prompt": SourceAcceptance(counts.offered_prompt, counts.accepted_prompt),
        },
    )
