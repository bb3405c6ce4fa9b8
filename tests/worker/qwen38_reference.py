"""What the tiny Qwen3.8 must say: two references that know no cache, and the checkpoint that all of this is about.

transformers says what the tokens must be; a target and drafter of the recipe's own, which take a whole text from its
first token in one pass, say what every logit and all state must be, bit for bit where arithmetic is deterministic.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from recipes.components.model import Lane, rows_of
from recipes.declaration import LoadConfig, PreparationConfig
from recipes.qwen38.checkpoint import Checkpoint
from recipes.qwen38.mtp import MtpDrafter
from recipes.qwen38.recipe import Qwen38
from recipes.qwen38.target import Target
from recipes.qwen38.tiny import tiny_architecture, write_tiny
from shared.manifest import read
from tests.worker.qwen38_state import committed_state


def write_core(folder: Path) -> None:
    """A tiny checkpoint and its core, for seven drafts."""
    write_tiny(folder / "checkpoint", tiny_architecture(), seed=1)
    config = PreparationConfig(draft_tokens=7, context_length=512, prefill_buckets=(32, 96), mixed_chunk=32)
    Qwen38().export(folder / "checkpoint", folder / "core", config, lambda what, done, total: None)


class Reference:
    """What a text's tokens and logits must be, from its first token on."""

    def __init__(self, folder: Path) -> None:
        # Here, because transformers takes seconds to import and most tests of this folder do not need it.
        from tests.recipes.qwen38.oracle import TargetOracle

        self._oracle = TargetOracle(Checkpoint(folder / "checkpoint"))
        manifest = read(folder / "core")
        pages = manifest.geometry.pages_per_request
        self._pages = torch.arange(pages)
        exact, quick = (
            Qwen38().load(folder / "core", manifest, LoadConfig(deterministic, 1, pages, 0))
            for deterministic in (True, False)
        )
        assert isinstance(exact.model, Target)
        assert isinstance(exact.drafter, MtpDrafter)
        self._exact, self._drafter, self._quick = exact.model, exact.drafter, quick.model
        self._known: dict[tuple[int, ...], list[int]] = {}

    def exact(self, tokens: list[int]) -> tuple[Tensor, dict[str, Tensor]]:
        """Raw logits [n, V] of a whole text in one pass over empty state, deterministic, and the state behind it."""
        self._exact.reset(0)
        self._drafter.reset(0)
        lane, inputs = Lane(0, 0, len(tokens), 0, self._pages), torch.tensor(tokens)
        streams = self._exact.forward(rows_of(inputs, (lane,)))
        self._exact.commit(lane, lane.count)
        self._drafter.absorb(lane, inputs, streams, lane.count)
        return self._exact.logits(streams), committed_state(self._exact, self._drafter, 0, self._pages)

    def foreign(self, tokens: list[int]) -> Tensor:
        """The same by transformers."""
        return self._oracle.run(torch.tensor(tokens))[0]

    def continuation(self, prompt: tuple[int, ...], count: int) -> list[int]:
        """The greedy continuation, which transformers confirms at every place in one uncached pass."""
        if len(self._known.get(prompt, ())) < count:
            said = self._greedy(prompt, count)
            logits = self.foreign([*prompt, *said])[len(prompt) - 1 : -1]
            assert logits.argmax(-1).tolist() == said, "transformers goes on differently"
            self._known[prompt] = said
        return self._known[prompt][:count]

    def _greedy(self, prompt: tuple[int, ...], count: int) -> list[int]:
        self._quick.reset(0)
        tokens, part = list(prompt), torch.tensor(prompt)
        for first in (0, *range(len(prompt), len(prompt) + count - 1)):
            lane = Lane(0, 0, len(part), first, self._pages)
            streams = self._quick.forward(rows_of(part, (lane,)))
            self._quick.commit(lane, len(part))
            part = self._quick.logits(streams[-1:]).argmax(-1)
            tokens.append(int(part))
        return tokens[len(prompt) :]
