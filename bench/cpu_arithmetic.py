"""Times the linear layers of SmolLM2-135M in the arithmetics that were considered, for docs/log.md.

    python -m bench.cpu_arithmetic [--threads 2] [--rows 1,2,4,8,16,32,256]

Random weights of the model's shapes; the median of some passes over all 121 layers, in milliseconds. Needs an idle
machine: with two threads on two busy cores every figure is tens of times too large.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import click
import torch
from torch import Tensor

from recipes.components.int8_linear import int8_linear

SHAPES = [(960, 576), (576, 576), (3072, 576), (576, 1536)] * 30 + [(49152, 576)]
Pass = Callable[[dict[int, Tensor]], object]


def _milliseconds(run: Callable[[], object], passes: int) -> float:
    run()
    times = []
    for _ in range(passes):
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def _arithmetics() -> dict[str, Pass]:
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randint(-127, 128, shape, dtype=torch.int8, generator=generator) for shape in SHAPES]
    scales = [torch.full((shape[0],), 0.01) for shape in SHAPES]
    layers = [int8_linear(weight, scale) for weight, scale in zip(weights, scales, strict=True)]
    brains = [weight.bfloat16() for weight in weights]
    floats = [weight.float() for weight in weights]
    linear = torch.nn.functional.linear

    def packed(rows: dict[int, Tensor]) -> None:
        narrow = {inner: row.bfloat16() for inner, row in rows.items()}
        for weight, scale in zip(weights, scales, strict=True):
            torch._weight_int8pack_mm(narrow[weight.shape[1]], weight, scale.bfloat16())

    def integers(rows: dict[int, Tensor]) -> None:
        parts = {inner: row.to(torch.int8).repeat(2, 1) for inner, row in rows.items()}
        for weight in weights:
            torch._int_mm(parts[weight.shape[1]], weight.t())

    return {
        "w8a14": lambda rows: [layer(rows[shape[1]]) for layer, shape in zip(layers, SHAPES, strict=True)],
        "_int_mm, two parts": integers,
        "_weight_int8pack_mm": packed,
        "bfloat16": lambda rows: [linear(rows[weight.shape[1]].bfloat16(), weight) for weight in brains],
        "float32": lambda rows: [linear(rows[weight.shape[1]], weight) for weight in floats],
    }


@click.command()
@click.option("--threads", default=2, show_default=True)
@click.option("--rows", "counts", default="1,2,4,8,16,32,256", show_default=True)
@click.option("--passes", default=7, show_default=True)
def main(threads: int, counts: str, passes: int) -> None:
    """Print one line an arithmetic, one column a row count."""
    torch.set_num_threads(threads)
    columns = [int(count) for count in counts.split(",")]
    click.echo(f"{'ms, ' + str(threads) + ' threads':24}" + "".join(f"{count:>9}" for count in columns))
    with torch.inference_mode():
        for name, run in _arithmetics().items():
            batches = [{inner: torch.randn(count, inner) for inner in (576, 1536)} for count in columns]
            figures = [_milliseconds(partial(run, rows), passes) for rows in batches]
            click.echo(f"{name:24}" + "".join(f"{figure:9.1f}" for figure in figures))


if __name__ == "__main__":
    main()
