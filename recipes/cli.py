"""`ignition`: prepares cores from checkpoints and says what they hold. Runs nothing and serves nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from recipes.declaration import PreparationConfig, Recipe
from recipes.registry import recipe_named, recipes
from shared import manifest
from shared.errors import FlareError
from shared.manifest import Manifest


@runtime_checkable
class WeightChoice(Protocol):
    """A recipe that can export more than one weight format."""

    def with_weights(self, weights: str) -> Recipe:
        """The recipe that exports `weights`."""
        ...


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
        """Runs the command; an error of ours becomes one line and exit code 1."""
        try:
            return super().invoke(ctx)
        except FlareError as error:
            raise click.ClickException(str(error)) from error


def _draft_counts(recipe: Recipe) -> str:
    speculation = recipe.speculation
    drafter = speculation.learned or "copies only"
    return f"{speculation.default_drafts}, {speculation.maximum_drafts}, {drafter}"


@click.group(cls=_Commands)
def main() -> None:
    """Prepare cores that `flare run` serves."""


@main.command()
@click.argument("recipe")
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.argument("core", type=click.Path(path_type=Path))
@click.option("--concurrency", default=4, show_default=True, help="Requests that run at the same time.")
@click.option("--context-length", default=2048, show_default=True, help="Tokens of prompt and answer together.")
@click.option(
    "--mtp-draft-tokens", type=int, default=None, help="Drafts a round at most; the recipe's default if unset."
)
@click.option("--speculative-token-capacity", default=128, show_default=True, help="Rows of one speculative graph.")
@click.option("--history-drafts/--no-history-drafts", default=False, show_default=True, help="Draft from past answers.")
@click.option("--pages", type=int, default=None, help="64-token pages; all requests at full context if unset.")
@click.option("--weights", default=None, help="Weight format, where the recipe has a choice (int8, float32).")
def export(
    recipe: str,
    checkpoint: Path,
    core: Path,
    concurrency: int,
    context_length: int,
    mtp_draft_tokens: int | None,
    speculative_token_capacity: int,
    history_drafts: bool,
    pages: int | None,
    weights: str | None,
) -> None:
    """Prepare the folder CORE from CHECKPOINT with RECIPE."""
    chosen = recipe_named(recipe)
    if weights is not None:
        if not isinstance(chosen, WeightChoice):
            raise click.UsageError(f"recipe {recipe} has one weight format only")
        chosen = chosen.with_weights(weights)
    config = PreparationConfig(
        concurrency=concurrency,
        context_length=context_length,
        draft_tokens=mtp_draft_tokens,
        speculative_token_capacity=speculative_token_capacity,
        pages=pages,
        history_drafts=history_drafts,
    )
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("opening checkpoint", total=None)
        prepared = chosen.export(
            checkpoint,
            core,
            config,
            lambda what, done, total: bar.update(task, description=what, completed=done, total=total),
        )
    _show(core, prepared)


@main.command()
@click.argument("recipe")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--seed", type=int, default=0, show_default=True, help="Equal seeds write equal checkpoints.")
def tiny(recipe: str, folder: Path, seed: int) -> None:
    """Write a tiny checkpoint of RECIPE's real format into FOLDER, with random weights."""
    chosen = recipe_named(recipe)
    if not isinstance(chosen, TinyCheckpoints):
        raise click.UsageError(f"recipe {recipe} has no tiny checkpoints")
    if folder.exists() and any(folder.iterdir()):
        raise click.UsageError(f"{folder} is not empty")
    chosen.write_tiny(folder, seed)


@main.command()
@click.argument("core", type=click.Path(path_type=Path))
def inspect(core: Path) -> None:
    """Say what CORE holds and how much memory it needs."""
    _show(core, manifest.read(core))


def _show(core: Path, prepared: Manifest) -> None:
    geometry = prepared.geometry
    held = Table("what", "value", title=str(core), title_justify="left")
    for what, value in (
        ("model", prepared.model_name),
        ("recipe", prepared.recipe),
        ("arithmetic", prepared.activation_policy),
        ("context", f"{geometry.context_length} tokens"),
        ("concurrency", f"{geometry.concurrency} requests"),
        ("pages", f"{geometry.pages} of {geometry.page_tokens} tokens"),
        ("graphs", str(len(prepared.graphs))),
        ("verification widths", ", ".join(map(str, prepared.verification_widths))),
        ("history drafts", "on" if prepared.history_drafts else "off"),
    ):
        held.add_row(what, value)
    bill = Table("memory", "MiB", title="bill", title_justify="left")
    bill.columns[1].justify = "right"
    for item in prepared.bill:
        bill.add_row(item.name, f"{item.nbytes / 2**20:.1f}")
    bill.add_section()
    bill.add_row("total", f"{sum(item.nbytes for item in prepared.bill) / 2**20:.1f}")
    console = Console()
    console.print(held)
    console.print(bill)
