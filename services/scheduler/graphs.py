"""Which captured graph carries a round: a lookup in the manifest's catalog, under the operator's draft cap. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from shared.errors import ManifestError, ProcessError
from shared.manifest import Kind, Manifest


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph of the manifest: its index there, and its shape."""

    index: int
    kind: Kind
    batch: int
    tokens: int


class GraphTable:
    """Raises `ProcessError` if the core was not prepared for the wanted way of serving."""

    def __init__(self, manifest: Manifest, draft_cap: int | None) -> None:
        most = manifest.draft_tokens
        drafts = most if draft_cap is None else draft_cap
        if drafts > most:
            raise ProcessError(f"this core was prepared for {most} draft tokens, not {drafts}")
        self.draft_cap = drafts
        self.speculative = drafts > 0 or (most == 0 and draft_cap is None)
        self.learned = self.speculative and any(graph.draft_source == "learned" for graph in manifest.graphs)
        self._graphs = [
            Graph(index, graph.kind, graph.batch_capacity, graph.token_capacity)
            for index, graph in enumerate(manifest.graphs)
        ]
        self.init = self._one("init")
        self._prefill = sorted(self._of("prefill"), key=lambda graph: graph.tokens)
        self._mixed = self._by_batch(self._of("mixed"))
        rounds = self._of("speculative") if self.speculative else self._of("decode")
        self._rounds = self._by_batch([graph for graph in rounds if graph.tokens <= drafts + 1])
        self._check(manifest.geometry.concurrency)

    def batch(self, lanes: int) -> int:
        """The smallest captured batch capacity that holds `lanes`."""
        return next(batch for batch in self._rounds if batch >= lanes)

    def widths(self, lanes: int) -> tuple[int, ...]:
        """Widths captured at the batch of `lanes`, ascending, within the draft cap."""
        return tuple(graph.tokens for graph in self._rounds[self.batch(lanes)])

    def generation(self, lanes: int, ceiling: int) -> Graph:
        """The smallest round that covers `lanes` and the largest ceiling."""
        return next(graph for graph in self._rounds[self.batch(lanes)] if graph.tokens >= ceiling)

    def prefill(self, remaining: int) -> Graph:
        """The smallest bucket that takes all that remains, else the largest."""
        return next((graph for graph in self._prefill if graph.tokens >= remaining), self._prefill[-1])

    def mixed(self, lanes: int) -> Graph | None:
        """The smallest mixed graph for `lanes`, if the core has any."""
        return next((graphs[-1] for batch, graphs in self._mixed.items() if batch >= lanes), None)

    def _of(self, kind: Kind) -> list[Graph]:
        return [graph for graph in self._graphs if graph.kind == kind]

    def _one(self, kind: Kind) -> Graph:
        found = self._of(kind)
        if not found:
            raise ManifestError(f"the core has no {kind} graph")
        return found[0]

    @staticmethod
    def _by_batch(graphs: list[Graph]) -> dict[int, list[Graph]]:
        ordered = sorted(graphs, key=lambda graph: (graph.batch, graph.tokens))
        return {batch: [g for g in ordered if g.batch == batch] for batch in sorted({g.batch for g in ordered})}

    def _check(self, concurrency: int) -> None:
        kind = "speculative" if self.speculative else "decode"
        if not self._prefill:
            raise ManifestError("the core has no prefill graph")
        if not any(batch >= concurrency for batch in self._rounds):
            raise ManifestError(f"the core has no {kind} graphs for {concurrency} requests")
        if any(graphs[0].tokens != 1 for graphs in self._rounds.values()):
            raise ManifestError(f"the core lacks {kind} graphs of width one")
