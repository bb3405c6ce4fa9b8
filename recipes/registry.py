"""Every recipe by name: our own, and those of the modules in FLARE_RECIPE_MODULES.

The variable holds module names, separated by commas; each has `RECIPES: tuple[Recipe, ...]`. Runs in `ignition` and in
the worker. Read at the call, so that a worker process sees what its supervisor was started with.
"""

from __future__ import annotations

import importlib
import os

from recipes.declaration import Recipe
from recipes.qwen38.recipe import RECIPES as QWEN38
from recipes.smollm2.recipe import RECIPES as SMOLLM2
from shared.errors import ManifestError

VARIABLE = "FLARE_RECIPE_MODULES"


def recipes() -> dict[str, Recipe]:
    """Name to recipe. Raises `ManifestError` on a module that cannot be used or a name taken twice."""
    found: dict[str, Recipe] = {recipe.name: recipe for recipe in (*SMOLLM2, *QWEN38)}
    for name in filter(None, (part.strip() for part in os.environ.get(VARIABLE, "").split(","))):
        try:
            added: tuple[Recipe, ...] = importlib.import_module(name).RECIPES
        except (ImportError, AttributeError) as error:
            raise ManifestError(f"{VARIABLE}: {name} is not a recipe module: {error}") from error
        for recipe in added:
            if recipe.name in found:
                raise ManifestError(f"{VARIABLE}: {name} declares {recipe.name!r}, which exists already")
            found[recipe.name] = recipe
    return found


def recipe_named(name: str) -> Recipe:
    """The recipe of a manifest or of the command line. Raises `ManifestError` naming those that exist."""
    found = recipes()
    if name not in found:
        raise ManifestError(f"no recipe {name!r}: there are {', '.join(sorted(found))} ({VARIABLE} adds more)")
    return found[name]
