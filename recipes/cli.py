"""`ignition`: prepares cores from checkpoints and says what they hold. Runs nothing and serves nothing."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from recipes.components.core_folder import refuse_existing
from recipes.declaration import Planned, Recipe
from recipes.inspection import show
from recipes.preparation import config_of, formatted, given, preparation
from recipes.registry import recipe_named, recipes
from shared import manifest
from shared.byte_sizes import byte_size
from shared.errors import FlareError

HEADROOM = "512MiB"


@runtime_checkable
class TinyCheckpoints(Protocol):
    """A recipe that can write checkpoints of its format for tests."""

    def write_tiny(self, folder: Path, seed: int) -> None:
        """Writes one into an empty folder."""
        ...


class _Commands(click.Group):
    """Lists the recipes under the commands, with their draft counts."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """After the commands: one line a recipe."""
        with formatter.section("Recipes (default drafts, maximum drafts, drafter)"):
            formatter.write_dl([(name, _draft_counts(recipe)) for name, recipe in sorted(recipes().items())])

    def invoke(self, ctx: click.Context) -> object:
        """Runs the command; an error of ours or of the file system becomes one line and exit code 1."""
        try:
            return super().invoke(ctx)
        except FlareError as error:
            raise click.ClickException(str(error)) from error
        except OSError as error:
            if error.errno == errno.EPIPE:  # whoever read our output has left: click ends quietly
                raise
            place = "" if error.filename is None else f"{error.filename}: "
            raise click.ClickException(f"{place}{error.strerror or error}") from error


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """An `OSError` of a write, which knows no path, gets that of the folder which is being written."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(folder)
        raise


def _draft_counts(recipe: Recipe) -> str:
    speculation = recipe.speculation
    drafter = speculation.learned or "copies only"
    return f"{speculation.default_drafts}, {speculation.maximum_drafts}, {drafter}"


def _bytes(context: click.Context, parameter: click.Parameter, value: str) -> int:
    try:
        return byte_size(value)
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from error


@click.group(cls=_Commands)
def main() -> None:
    """Prepare cores that `flare run` serves."""


@main.command()
@click.argument("recipe")
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.argument("core", type=click.Path(path_type=Path))
@preparation
def export(recipe: str, checkpoint: Path, core: Path, **values: Any) -> None:
    """Prepare the folder CORE from CHECKPOINT with RECIPE."""
    chosen = formatted(recipe_named(recipe), values)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    bar = Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True))
    task = bar.add_task("")
    with _writing(core), ExitStack() as shown:

        def advance(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)
            if not bar.live.is_started:  # what is refused before has nothing to show
                shown.enter_context(bar)

        prepared = chosen.export(checkpoint, core, config_of(values), advance)
    show(str(core), chosen, prepared, byte_size(HEADROOM))


@main.command()
@click.argument("recipe")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--seed", type=int, default=0, show_default=True, help="Equal seeds write equal checkpoints.")
def tiny(recipe: str, folder: Path, seed: int) -> None:
    """Write a tiny checkpoint of RECIPE's real format into FOLDER, with random weights."""
    chosen = recipe_named(recipe)
    if not isinstance(chosen, TinyCheckpoints):
        raise click.UsageError(f"recipe {recipe} has no tiny checkpoints")
    refuse_existing(folder)
    with _writing(folder):
        chosen.write_tiny(folder, seed)


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--recipe", help="FOLDER is a checkpoint: what a core of it by this recipe would be.")
@click.option("--headroom", default=HEADROOM, show_default=True, callback=_bytes, help="Memory to be kept free.")
@preparation
@click.pass_context
def inspect(context: click.Context, /, folder: Path, recipe: str | None, headroom: int, **values: Any) -> None:
    """Say what the core in FOLDER holds and how much memory it needs, by kind.

    With --recipe, FOLDER is a checkpoint, and the other options are those of an export that is not made.
    """
    if recipe is None:
        if asked := given(context, tuple(values)):
            raise click.UsageError(f"{', '.join(asked)}: a core is what it is; for a checkpoint name its --recipe")
        prepared = manifest.read(folder)
        show(str(folder), recipe_named(prepared.recipe), prepared, headroom)
        return
    chosen = formatted(recipe_named(recipe), values)
    if not isinstance(chosen, Planned):
        raise click.UsageError(f"recipe {recipe} cannot tell of a checkpoint before its export: inspect the core")
    show(str(folder), chosen, chosen.plan(folder, config_of(values)), headroom)
