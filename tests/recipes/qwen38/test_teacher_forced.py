"""`bench/teacher_forced.py` over a core: full-vocabulary logits are kept, and lie where repeatability lets them.

Every bound is a multiple of what the reference differs from itself, cached steps against one forward pass, on this
text; the whole-model figures are a diagnostic beside test_agreement.py and the component comparisons.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from safetensors.torch import load_file

from bench.teacher_forced import main as teacher_forced
from recipes.cli import main as ignition
from recipes.components.diagnostics import Summary, divergence
from tests.recipes.qwen38.teacher_forced import Core

TOKENS = 48
WIDTHS = tuple(f"verification, width {width}" for width in range(2, 9))
PAIRS = tuple(
    f"MTP rows, {streams} streams, {way}" for streams in ("reference", "own") for way in ("at once", "one by one")
)
ITSELF = "reference, cached steps"
FLOOR = 1e-6
"""Below this KL in float32 is noise: sums over the vocabulary of differences of logarithms."""


@pytest.fixture(scope="module")
def summaries(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Summary]:
    path = tmp_path_factory.mktemp("teacher-forced")
    made = CliRunner().invoke(ignition, ["export", "qwen3.8-flash", str(folder), str(path / "core")])
    assert made.exit_code == 0, made.output
    saved = path / "logits.safetensors"
    shown = CliRunner().invoke(
        teacher_forced, [str(path / "core"), "--tokens", str(TOKENS), "--seed", "3", "--save", str(saved)]
    )
    assert shown.exit_code == 0, shown.output
    logits, vocabulary = load_file(saved), Core(path / "core").architecture.vocab_size
    names = {name.rsplit(".", 1)[0] for name in logits}
    assert all(name in shown.output for name in names)
    found = {}
    for name in names:
        pair = logits[f"{name}.reference"], logits[f"{name}.actual"]
        assert {tuple(side.shape) for side in pair} == {(TOKENS - (name in PAIRS), vocabulary)}
        found[name] = divergence(*pair).summary()
    return found


def test_every_way_of_running_a_text_is_a_stage(summaries: dict[str, Summary]) -> None:
    assert summaries.keys() == {ITSELF, "prefill", "cached decode", *WIDTHS, *PAIRS}


@pytest.mark.parametrize("stage", ["prefill", "cached decode", *WIDTHS, *PAIRS])
def test_a_stage_differs_from_the_reference_as_the_reference_from_itself(
    summaries: dict[str, Summary], stage: str
) -> None:
    itself, found = summaries[ITSELF], summaries[stage]
    assert 0.0 < itself.worst_relative_l2 < 1e-4
    assert found.worst_relative_l2 <= 4 * itself.worst_relative_l2
    assert found.worst_kl <= 4 * max(itself.worst_kl, FLOOR)
    assert found.top_overlap >= 0.99
    assert found.same_first >= 0.97
