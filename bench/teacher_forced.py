"""Teacher-forced diagnostics of Qwen3.8-Flash: ours against transformers on the same weights, whole vocabulary.

    python -m bench.teacher_forced [CORE] [--seed 0] [--tokens 96] [--activations w4a4] [--save logits.safetensors]

CORE is an exported core small enough for a CPU; without it a tiny checkpoint is drawn from the seed. Prints relative L2
(the reference's norm is the denominator), top-10 overlap, KL(reference || actual) in float32 and agreement of the first
token. The first row is the reference against its own cached steps: what cannot be told apart from.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import click
import torch
from safetensors.torch import save_file

from bench.figures import cells, printed
from recipes.components.nvfp4_activations import ActivationPolicy
from recipes.qwen38.checkpoint import Checkpoint
from recipes.qwen38.tiny import tiny_architecture, write_tiny
from tests.recipes.qwen38.teacher_forced import Core, Stage, stages


@click.command()
@click.argument("core", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--seed", default=0, show_default=True, help="Of the tiny checkpoint and of the text.")
@click.option("--tokens", default=96, show_default=True, help="Length of the text.")
@click.option(
    "--activations",
    type=click.Choice([policy.value for policy in ActivationPolicy]),
    default=None,
    help="The core's if unset.",
)
@click.option("--save", type=click.Path(path_type=Path), default=None, help="Keeps the logits of every stage.")
def main(core: Path | None, seed: int, tokens: int, activations: str | None, save: Path | None) -> None:
    """Run every stage and print its figures."""
    with tempfile.TemporaryDirectory() as place:
        if core is None:
            write_tiny(Path(place), tiny_architecture(), seed)
        stored = Checkpoint(Path(place)) if core is None else Core(core)
        declared = stored.policy if isinstance(stored, Core) else ActivationPolicy.W4A16
        policy = ActivationPolicy(activations) if activations else declared
        generator = torch.Generator().manual_seed(seed)
        text = torch.randint(0, stored.architecture.vocab_size, (tokens,), generator=generator)
        found: list[Stage] = list(stages(stored, policy, text))
    printed(f"{core or 'tiny'}, seed {seed}, {policy}", ((s.name, cells(s.divergence.summary())) for s in found))
    if save is not None:
        kept = {f"{s.name}.{side}": getattr(s, side).contiguous() for s in found for side in ("reference", "actual")}
        save_file({name: logits.clone() for name, logits in kept.items()}, save)


if __name__ == "__main__":
    main()
