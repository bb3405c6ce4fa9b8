"""A recipe whose author is looking for something: T1, whose program stops in the debugger at prompts that say so."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recipes.components.model import Rows
from recipes.declaration import LoadConfig, Loaded, Recipe
from shared.manifest import Manifest
from tests.fixtures.scripted.recipe import SCRIPTED, ScriptedRecipe
from tests.fixtures.scripted.target import ScriptedTarget
from tests.fixtures.scripted.vocabulary import encode

WORD = "stop here"


class SteppingTarget(ScriptedTarget):
    """Stops once, where the word is prefilled."""

    def forward(self, rows: Rows) -> Tensor:
        word = torch.tensor(encode(WORD))
        if len(rows.tokens) >= len(word) and bool((rows.tokens.unfold(0, len(word), 1) == word).all(1).any()):
            breakpoint()
        return super().forward(rows)


@dataclass(frozen=True, slots=True)
class SteppingRecipe(ScriptedRecipe):
    """`ScriptedRecipe` over that target, without a drafter."""

    def load(self, core: object, manifest: Manifest, config: LoadConfig) -> Loaded:
        return Loaded(SteppingTarget(config.pages, config.slots, config.snapshots, 0.0), None)


STEPPING = SteppingRecipe("stepping", SCRIPTED.speculation)
RECIPES: tuple[Recipe, ...] = (STEPPING,)
