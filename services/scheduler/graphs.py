"""Which captured graph carries a round: a lookup in the manifest's catalog, under the operator's choices. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from services.scheduler.config import SchedulerConfig
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
    """The graphs of one way of serving. Raises `ProcessError` if the core was not prepared for it.

    `draft_cap` 0 chooses ordinary serving, any other number the widths with at most so many drafts; None takes what
    the core has. With `fixed`, each batch capacity has one round graph: of `fixed_width`, by default the widest, where
    that shape was captured, and of width one elsewhere.
    """

    def __init__(
        self, manifest: Manifest, draft_cap: int | None, fixed: bool = False, fixed_width: int | None = None
    ) -> None:
        self._core = manifest
        self._graphs = [
            Graph(index, graph.kind, graph.batch_capacity, graph.token_capacity)
            for index, graph in enumerate(manifest.graphs)
        ]
        prepared = bool(self._of("speculative"))
        self.speculative = prepared if draft_cap is None else draft_cap > 0
        widths = self._widths(manifest.draft_tokens if draft_cap is None else draft_cap)
        self.draft_cap = widths[-1] - 1
        """Most drafts of a round."""
        self.learned = self.speculative and any(graph.draft_source == "learned" for graph in manifest.graphs)
        chosen = self._fixed(widths, fixed_width) if fixed or fixed_width is not None else None
        self.init = self._one("init")
        self._prefill = sorted(self._of_mode("prefill"), key=lambda graph: graph.tokens)
        self.scored = next(iter(self._of_mode("scored_prefill")), None)
        """What scores a chunk of a prompt, if the core has it."""
        self._mixed = self._by_batch(self._of_mode("mixed"))
        rounds = self._of("speculative") if self.speculative else self._of("decode")
        self._rounds = self._by_batch([graph for graph in rounds if graph.tokens in widths])
        self._check(manifest.geometry.concurrency)
        if chosen is not None:
            self._rounds = {batch: [_only(graphs, chosen)] for batch, graphs in self._rounds.items()}
        self._widths_of = {batch: tuple(g.tokens for g in graphs) for batch, graphs in self._rounds.items()}

    def batch(self, lanes: int) -> int:
        """The smallest captured batch capacity that holds `lanes`."""
        return next(batch for batch in self._rounds if batch >= lanes)

    def widths(self, lanes: int) -> tuple[int, ...]:
        """Widths to choose among at the batch of `lanes`, ascending."""
        return self._widths_of[self.batch(lanes)]

    def generation(self, lanes: int, ceiling: int) -> Graph:
        """The smallest round that covers `lanes` and the largest ceiling."""
        return next(graph for graph in self._rounds[self.batch(lanes)] if graph.tokens >= ceiling)

    def prefill(self, remaining: int) -> Graph:
        """The smallest bucket that takes all that remains, else the largest."""
        return next((graph for graph in self._prefill if graph.tokens >= remaining), self._prefill[-1])

    def mixed(self, lanes: int) -> Graph | None:
        """The smallest mixed graph for `lanes`, if the core has any."""
        return next((graphs[-1] for batch, graphs in self._mixed.items() if batch >= lanes), None)

    @property
    def continues(self) -> bool:
        """Whether the core has what a request needs to start from a cached prefix."""
        return bool(self._of("restore") and self._of("resume"))

    def state(self, kind: Literal["restore", "resume"]) -> Graph:
        """The graph of a state operation. Raises `ManifestError` if the core has none."""
        return self._one(kind)

    @property
    def rounds(self) -> tuple[Graph, ...]:
        """Every generation graph that may be chosen."""
        return tuple(graph for graphs in self._rounds.values() for graph in graphs)

    def _widths(self, drafts: int) -> tuple[int, ...]:
        """The prepared widths within the operator's cap."""
        prepared, most = self._core.verification_widths, self._core.draft_tokens
        if drafts > most:
            raise ProcessError(f"this core was prepared for {most} draft tokens, not {drafts}")
        if not self.speculative:
            return (1,)
        found = tuple(width for width in prepared if width <= drafts + 1)
        if drafts > 0 and len(found) == 1:
            shown = ", ".join(map(str, prepared))
            raise ProcessError(f"this core was prepared for the widths {shown}: none drafts {drafts} tokens or fewer")
        return found

    def _fixed(self, widths: tuple[int, ...], chosen: int | None) -> int:
        if chosen is None:
            return widths[-1]
        if chosen not in widths or not self.speculative:
            shown = ", ".join(map(str, widths)) if self.speculative else "none: nothing is drafted"
            raise ProcessError(
                f"a fixed width of {chosen} is not among the speculative widths to choose from ({shown})"
            )
        return chosen

    def _of(self, kind: Kind) -> list[Graph]:
        return [graph for graph in self._graphs if graph.kind == kind]

    def _of_mode(self, kind: Kind) -> list[Graph]:
        """Those of this mode, and those that belong to none."""
        modes = (None, self.speculative)
        return [graph for graph in self._of(kind) if self._core.graphs[graph.index].speculation_enabled in modes]

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
        if not self.speculative and not self._rounds:
            raise ManifestError("the core has no decode graphs: it was exported with --mtp-only and can only speculate")
        if not self._prefill:
            raise ManifestError("the core has no prefill graph")
        if not any(batch >= concurrency for batch in self._rounds):
            raise ManifestError(f"the core has no {kind} graphs for {concurrency} requests")
        if any(graphs[0].tokens != 1 for graphs in self._rounds.values()):
            raise ManifestError(f"the core lacks {kind} graphs of width one")


def chosen_graphs(manifest: Manifest, config: SchedulerConfig) -> GraphTable:
    """The graphs that a scheduler of this configuration uses. Raises `ProcessError` if the core lacks them."""
    fixed = config.fixed(manifest.adaptive_verification)
    return GraphTable(manifest, config.draft_tokens, fixed, config.fixed_width)


def _only(graphs: list[Graph], width: int) -> Graph:
    """The graph of that width, or the first, which is of width one."""
    return next((graph for graph in graphs if graph.tokens == width), graphs[0])
