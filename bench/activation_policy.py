"""What rounding the activations of NVFP4 experts does (W4A4), against leaving them (W4A16): the table of docs/adr/0007.

    python -m bench.activation_policy [--seeds 5] [--tokens 96] [--rows 32]

Tiny checkpoints of several seeds and depths as whole models, teacher-forced; then one layer of experts at the real
widths, its weights drawn at random and taken through NVFP4 and CSF. The reference of every row is W4A16, except of the
rows about noise, whose reference is the same policy without noise; there only rows count that noise sends to the same
experts. Takes some minutes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor

from bench.figures import cells, printed
from recipes.components import csf, nvfp4
from recipes.components.diagnostics import Divergence, Summary, divergence, relative_l2
from recipes.components.experts import Mixture
from recipes.components.model import Lane, rows_of
from recipes.components.nvfp4_activations import ActivationPolicy, InputScales
from recipes.declaration import LoadConfig
from recipes.qwen38.checkpoint import Checkpoint
from recipes.qwen38.target import Target, TargetWeights
from recipes.qwen38.tiny import tiny_architecture, write_tiny
from recipes.qwen38.weights import WeightReader, read_target
from shared.manifest import PAGE_TOKENS

HIDDEN, INNER, EXPERTS, TOP, VOCABULARY = 2560, 640, 512, 10, 248_320
"""models.md, section 1.2."""
LARGEST = nvfp4.LARGEST * 448.0
Line = tuple[str, tuple[str, ...]]
"""A row of the table: what was compared, and its figures."""


@dataclass(slots=True)
class Noted:
    """Experts that keep what they read and what they gave."""

    experts: Mixture
    read: list[Tensor] = field(default_factory=list)
    gave: list[Tensor] = field(default_factory=list)

    def __call__(self, x: Tensor) -> Tensor:
        """The output of the experts."""
        self.read.append(x)
        self.gave.append(self.experts(x))
        return self.gave[-1]


def _noted(weights: TargetWeights) -> tuple[TargetWeights, list[Noted]]:
    experts: list[Any] = [Noted(layer.experts) for layer in weights.layers]
    pairs = zip(weights.layers, experts, strict=True)
    return replace(weights, layers=tuple(replace(layer, experts=noted) for layer, noted in pairs)), experts


def _logits(checkpoint: Checkpoint, weights: TargetWeights, text: Tensor, width: int) -> Tensor:
    pages = len(text) // PAGE_TOKENS + 1
    target = Target(checkpoint.architecture, weights, LoadConfig(False, slots=1, pages=pages, snapshots=0))
    streams = []
    for first in range(0, len(text), width):
        lane = Lane(0, 0, len(text[first : first + width]), first, torch.arange(pages))
        streams.append(target.forward(rows_of(text[first : first + width], (lane,))))
        target.commit(lane, lane.count)
    return target.logits(torch.cat(streams))


def _joined(parts: list[Divergence]) -> Summary:
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.joined(part)
    return whole.summary()


def tiny_models(layers: int, seeds: int, tokens: int) -> Iterator[Line]:
    """Expert outputs on identical inputs, then logits of whole models; and each policy against its own other widths."""
    kinds = ("linear_attention", "linear_attention", "linear_attention", "full_attention")
    a = tiny_architecture(num_hidden_layers=layers, layer_types=kinds * (layers // 4))
    outputs: list[Divergence] = []
    logits: list[Divergence] = []
    widths: dict[ActivationPolicy, list[Divergence]] = {policy: [] for policy in ActivationPolicy}
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as place:
            write_tiny(Path(place), a, seed)
            checkpoint = Checkpoint(Path(place))
            reader = WeightReader(a, checkpoint.tensors)
            text = torch.randint(0, a.eos_token_id, (tokens,), generator=torch.Generator().manual_seed(seed))
            weights = {policy: read_target(reader, policy) for policy in ActivationPolicy}
            found = {}
            for policy, own in weights.items():
                noting, noted = _noted(own)
                found[policy] = _logits(checkpoint, noting, text, tokens)
                widths[policy].append(divergence(found[policy], _logits(checkpoint, own, text, 1)))
                if policy is ActivationPolicy.W4A16:
                    rounding = [layer.experts for layer in weights[ActivationPolicy.W4A4].layers]
                    outputs += [divergence(n.gave[0], e(n.read[0])) for n, e in zip(noted, rounding, strict=True)]
            logits.append(divergence(found[ActivationPolicy.W4A16], found[ActivationPolicy.W4A4]))
    name = f"tiny, {layers} layers"
    yield f"{name}: expert outputs", cells(_joined(outputs), logits=False)
    yield f"{name}: logits", cells(_joined(logits))
    for policy, parts in widths.items():
        yield f"{name}: {policy}, width 1 against prefill", cells(_joined(parts))


class DrawnExperts:
    """Matrices of experts by number, drawn when they are first asked for and kept as NVFP4 with CSF scales."""

    def __init__(self, shapes: tuple[tuple[int, int], ...], salt: int) -> None:
        self._shapes, self._salt = shapes, salt
        self._kept: dict[int, list[tuple[Tensor, tuple[Tensor, Tensor], Tensor]]] = {}

    def __getitem__(self, expert: int) -> Tensor:
        """The dequantised matrices of one expert, one below the other."""
        if expert not in self._kept:
            generator = torch.Generator().manual_seed(self._salt * EXPERTS + expert)
            self._kept[expert] = [self._drawn(shape, generator) for shape in self._shapes]
        return torch.cat([_restored(*kept) for kept in self._kept[expert]])

    def _drawn(
        self, shape: tuple[int, int], generator: torch.Generator
    ) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor]:
        matrix = torch.randn(shape, generator=generator) * shape[1] ** -0.5
        single = nvfp4.global_scale_of(matrix)
        packed, scales = nvfp4.quantize(matrix, single)
        return packed, csf.encode(scales.view(torch.uint8)), single


def _restored(packed: Tensor, streams: tuple[Tensor, Tensor], single: Tensor) -> Tensor:
    scales = csf.decode(*streams, packed.shape[0], packed.shape[1] * 2 // nvfp4.BLOCK)
    return nvfp4.dequantize(packed, scales.view(torch.float8_e4m3fn), single)


def _real_layer() -> Mixture:
    generator = torch.Generator().manual_seed(0)
    gate_up: Any = DrawnExperts(((INNER, HIDDEN), (INNER, HIDDEN)), 1)
    down: Any = DrawnExperts(((HIDDEN, INNER),), 2)
    return Mixture(
        router=torch.randn(EXPERTS, HIDDEN, generator=generator) * HIDDEN**-0.5,
        gate_up=gate_up,
        down=down,
        shared_gate_up=torch.zeros(2 * INNER, HIDDEN),
        shared_down=torch.zeros(HIDDEN, INNER),
        shared_gate=torch.zeros(1, HIDDEN),
        top=TOP,
    )


def _calibrated(layer: Mixture, x: Tensor) -> InputScales:
    """Scales that just hold what the layer reads; each expert's inner limit is taken from one of them for all."""
    gates, ups = (x @ layer.gate_up[0].t()).chunk(2, dim=-1)
    inner = float((torch.nn.functional.silu(gates) * ups).abs().max())
    ones = torch.ones(EXPERTS)
    return InputScales(ones * float(x.abs().max()) / LARGEST, ones * inner / LARGEST)


def _head(x: Tensor) -> Tensor:
    """Logits of rows [R, H] under a random vocabulary of the real size, in parts."""
    generator, parts = torch.Generator().manual_seed(9), []
    for _ in range(0, VOCABULARY, 8192):
        parts.append(x @ torch.randn(8192, HIDDEN, generator=generator).t())
    lengths: Tensor = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    return torch.cat(parts, dim=1)[:, :VOCABULARY] / lengths


def _outliers(x: Tensor) -> Tensor:
    """The same rows with every hundredth channel twenty times as large."""
    found = x.clone()
    found[:, ::100] *= 20
    before, after = (torch.linalg.vector_norm(rows, dim=1, keepdim=True) for rows in (x, found))
    return found.mul_(before / after)


def real_layer(rows: int) -> Iterator[Line]:
    """One layer of 512 experts: outputs, and what a vocabulary of the real size would make of them alone."""
    layer = _real_layer()
    normal = torch.randn(rows, HIDDEN, generator=torch.Generator().manual_seed(5)) * 0.5
    for kind, x in (("normal", normal), ("outliers", _outliers(normal))):
        scales = _calibrated(layer, x)
        plain, rounding = layer(x), replace(layer, input_scales=scales)(x)
        yield f"{kind}: expert outputs", _outputs(plain, rounding)
        yield f"{kind}: logits of them alone", cells(divergence(_head(plain), _head(rounding)).summary())
        for factor in (16.0, 0.5):
            off = InputScales(scales.gate_up * factor, scales.down * factor)
            yield f"{kind}: input scales times {factor:g}", _outputs(plain, replace(layer, input_scales=off)(x))
        for what, noise in NOISES.items():
            noisy = noise(x)
            kept = (_chosen(layer, x) == _chosen(layer, noisy)).all(1)
            size = float(relative_l2(x, noisy).mean())
            for policy, reference, own in (("w4a16", plain, None), ("w4a4", rounding, scales)):
                found = replace(layer, input_scales=own)(noisy)
                yield f"{kind}: {policy}, {what} of {size:.1e}", _outputs(reference[kept], found[kept])


def _chosen(layer: Mixture, x: Tensor) -> Tensor:
    """Which experts a row is sent to: rows that noise sends elsewhere say nothing about rounding."""
    return torch.topk(x @ layer.router.t(), TOP).indices.sort(1).values


def _outputs(reference: Tensor, found: Tensor) -> tuple[str, ...]:
    return cells(divergence(reference, found).summary(), logits=False)


def _multiplied(x: Tensor) -> Tensor:
    return x * (1 + 1e-6 * torch.randn(x.shape, generator=torch.Generator().manual_seed(7)))


NOISES: dict[str, Callable[[Tensor], Tensor]] = {
    "input noise": _multiplied,
    "bfloat16 inputs": lambda x: x.bfloat16().float(),
}


@click.command()
@click.option("--seeds", default=5, show_default=True, help="Tiny checkpoints of each depth.")
@click.option("--tokens", default=96, show_default=True, help="Tokens of each text.")
@click.option("--rows", default=32, show_default=True, help="Rows of the real layer; 0 leaves it out.")
def main(seeds: int, tokens: int, rows: int) -> None:
    """Measure and print."""
    with torch.inference_mode():
        printed("W4A4 against W4A16, tiny models", (row for n in (4, 16) for row in tiny_models(n, seeds, tokens)))
        if rows:
            printed("W4A4 against W4A16, one layer at real widths", real_layer(rows))


if __name__ == "__main__":
    main()
