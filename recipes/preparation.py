"""What `ignition` asks about a core: the options that `export` and `inspect` share, each named as its field.

Runs in `ignition`. A wish that contradicts another is refused where the graphs are planned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Protocol, runtime_checkable

import click
from click.core import ParameterSource

from recipes.declaration import PreparationConfig, Recipe

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


@runtime_checkable
class WeightChoice(Protocol):
    """A recipe that can export more than one weight format."""

    def with_weights(self, weights: str) -> Recipe:
        """The recipe that exports `weights`."""
        ...


@runtime_checkable
class ActivationChoice(Protocol):
    """A recipe that can export more than one activation policy."""

    def with_activations(self, activations: str) -> Recipe:
        """The recipe that exports cores of the policy `activations`."""
        ...


class Numbers(click.ParamType[tuple[int, ...]]):
    """Whole numbers, separated by commas."""

    name = "n,n,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers such as 1,2,4", param, ctx)


FORMATS: tuple[Decorator, ...] = (
    click.option("--weights", default=None, help="Weight format, where the recipe has a choice (int8, float32)."),
    click.option("--activations", default=None, help="Activation policy, where the recipe has a choice (w4a16, w4a4)."),
)
PREPARATION: tuple[Decorator, ...] = (
    click.option("--concurrency", default=4, show_default=True, help="Requests that run at the same time."),
    click.option("--context-length", default=2048, show_default=True, help="Tokens of prompt and answer together."),
    click.option(
        "--mtp-draft-tokens",
        "draft_tokens",
        type=int,
        help="Drafts a round at most; the recipe's default if unset. 0: rounds of width one, which keep draft state.",
    ),
    click.option(
        "--speculative-widths",
        type=Numbers(),
        help="Verification widths to prepare instead of all up to the drafts: ascending, from 1.",
    ),
    click.option("--mtp-only", is_flag=True, help="Prepare no ordinary graphs: the core can only speculate."),
    click.option(
        "--no-mtp",
        "mtp",
        is_flag=True,
        flag_value=False,
        default=True,
        help="Prepare no drafter, only ordinary graphs.",
    ),
    click.option(
        "--mtp-adaptive-verification/--no-mtp-adaptive-verification",
        "adaptive",
        default=True,
        show_default=True,
        help="The core's own policy: choose each round's width, or always take the widest.",
    ),
    click.option("--speculative-token-capacity", default=128, show_default=True, help="Rows of one speculative graph."),
    click.option(
        "--prefill-buckets",
        type=Numbers(),
        default=(32, 256),
        show_default="32,256",
        help="Prompt tokens of the prefill graphs.",
    ),
    click.option(
        "--mixed-chunk",
        default=64,
        show_default=True,
        help="Prompt tokens that a round takes in beside running requests.",
    ),
    click.option(
        "--history-drafts/--no-history-drafts", default=False, show_default=True, help="Draft from past answers."
    ),
    click.option("--pages", type=int, default=None, help="64-token pages; all requests at full context if unset."),
    click.option(
        "--snapshot-slots",
        default=16,
        show_default=True,
        help="Prefixes whose recurrent state the prefix cache can keep. 0: none, so no prefix cache for such models.",
    ),
)


def preparation(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command every option of a preparation."""
    for option in reversed((*PREPARATION, *FORMATS)):
        command = option(command)
    return command


def config_of(values: Mapping[str, Any]) -> PreparationConfig:
    """The configuration that the options make."""
    known = {field.name for field in fields(PreparationConfig)}
    return PreparationConfig(**{name: value for name, value in values.items() if name in known})


def formatted(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """The recipe with the chosen formats. Raises `UsageError` where it has no choice."""
    if values["weights"] is not None:
        if not isinstance(recipe, WeightChoice):
            raise click.UsageError(f"recipe {recipe.name} has one weight format only")
        recipe = recipe.with_weights(values["weights"])
    if values["activations"] is not None:
        if not isinstance(recipe, ActivationChoice):
            raise click.UsageError(f"recipe {recipe.name} has one activation policy only")
        recipe = recipe.with_activations(values["activations"])
    return recipe


def given(context: click.Context, names: Sequence[str]) -> list[str]:
    """The options among `names` (of parameters) that this command line has, as they are written."""
    asked = {name for name in names if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    return [parameter.opts[0] for parameter in context.command.params if parameter.name in asked]
