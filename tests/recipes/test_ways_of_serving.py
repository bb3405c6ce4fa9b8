"""From the options of `ignition export` and `flare run` to the graphs that a scheduler chooses, and to its tensors."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from compose import cli
from compose.options import configure
from recipes.cli import main
from services.scheduler.config import SchedulerConfig
from services.scheduler.graphs import GraphTable
from services.scheduler.opening import open_core
from shared.errors import ProcessError
from shared.manifest import read

DRAFTER = "mtp.safetensors"


@pytest.fixture(scope="module")
def cores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint, and beside it a core for each set of options that a test asks for."""
    folder = tmp_path_factory.mktemp("ways")
    assert CliRunner().invoke(main, ["tiny", "qwen3.8-flash", str(folder / "checkpoint")]).exit_code == 0
    return folder


def exported(cores: Path, *options: str) -> Path:
    """The core that `ignition export` makes with these options, made once."""
    core = cores / ("core" + "".join(options).replace(",", "-"))
    if not core.exists():
        arguments = ["export", "qwen3.8-flash", str(cores / "checkpoint"), str(core), "--context-length", "256"]
        shown = CliRunner().invoke(main, [*arguments, *options])
        assert shown.exit_code == 0, shown.output
    return core


def scheduler(core: Path, *options: str) -> SchedulerConfig:
    """What `flare run CORE` with these options makes of its scheduler."""
    with cli.run.make_context("run", [str(core), *options]) as context:
        return configure(SchedulerConfig, {**context.params, "core": core, "run_dir": core})


def served(core: Path, *options: str) -> tuple[str, tuple[int, ...]]:
    """The mode of every graph that is chosen, and the widths of rounds of four requests."""
    graphs: GraphTable = open_core(scheduler(core, *options), 1).graphs
    mixed = [graph for lanes in (1, 2, 4) if (graph := graphs.mixed(lanes)) is not None]
    chosen = {graph.index for graph in (*graphs.rounds, *mixed, *(graphs.prefill(count) for count in (1, 200)))}
    modes = {read(core).graphs[index].speculation_enabled for index in chosen}
    assert len(modes) == 1, "one way of serving"
    return "speculative" if modes.pop() else "ordinary", graphs.widths(4)


@pytest.mark.parametrize(
    ("export", "run", "mode", "widths"),
    [
        ((), (), "speculative", (1, 2, 3, 4, 5, 6)),
        ((), ("--mtp-draft-tokens", "2"), "speculative", (1, 2, 3)),
        ((), ("--mtp-draft-tokens", "0"), "ordinary", (1,)),
        ((), ("--no-mtp-adaptive-verification",), "speculative", (6,)),
        ((), ("--speculative-fixed-width", "4"), "speculative", (4,)),
        ((), ("--mtp-draft-tokens", "3", "--deterministic"), "speculative", (4,)),
        (("--mtp-draft-tokens", "7"), (), "speculative", (1, 2, 3, 4, 5, 6, 7, 8)),
        (("--mtp-draft-tokens", "0"), (), "speculative", (1,)),
        (("--mtp-draft-tokens", "0"), ("--mtp-draft-tokens", "0"), "ordinary", (1,)),
        (("--mtp-only",), (), "speculative", (1, 2, 3, 4, 5, 6)),
        (("--mtp-only", "--mtp-draft-tokens", "0"), (), "speculative", (1,)),
        (("--no-mtp",), (), "ordinary", (1,)),
        (("--no-mtp",), ("--mtp-draft-tokens", "0"), "ordinary", (1,)),
        (("--speculative-widths", "1,2,4,6"), (), "speculative", (1, 2, 4, 6)),
        (("--speculative-widths", "1,2,4,6"), ("--mtp-draft-tokens", "4"), "speculative", (1, 2, 4)),
        (("--no-mtp-adaptive-verification",), (), "speculative", (6,)),
        (("--no-mtp-adaptive-verification",), ("--mtp-adaptive-verification",), "speculative", (1, 2, 3, 4, 5, 6)),
    ],
)
def test_options_choose_the_graphs(
    cores: Path, export: tuple[str, ...], run: tuple[str, ...], mode: str, widths: tuple[int, ...]
) -> None:
    assert served(exported(cores, *export), *run) == (mode, widths)


@pytest.mark.parametrize(
    ("export", "run", "says"),
    [
        (("--mtp-only",), ("--mtp-draft-tokens", "0"), "exported with --mtp-only"),
        (("--no-mtp",), ("--mtp-draft-tokens", "1"), "prepared for 0 draft tokens, not 1"),
        ((), ("--mtp-draft-tokens", "6"), "prepared for 5 draft tokens, not 6"),
        (("--speculative-widths", "1,2,4,6"), ("--speculative-fixed-width", "3"), "fixed width of 3"),
        (("--mtp-draft-tokens", "0"), ("--speculative-fixed-width", "2"), "fixed width of 2"),
    ],
)
def test_what_a_core_was_not_prepared_for_is_refused(
    cores: Path, export: tuple[str, ...], run: tuple[str, ...], says: str
) -> None:
    with pytest.raises(ProcessError, match=says):
        served(exported(cores, *export), *run)


def test_a_drafter_is_in_the_core_unless_it_was_not_wanted(cores: Path) -> None:
    assert (exported(cores) / DRAFTER).exists()
    assert (exported(cores, "--mtp-draft-tokens", "0") / DRAFTER).exists()
    without = exported(cores, "--no-mtp")
    assert not (without / DRAFTER).exists()
    assert not any("draft" in item.name for item in read(without).bill)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--no-mtp", "--mtp-only"], "--mtp-only and --no-mtp exclude each other"),
        (["--no-mtp", "--mtp-draft-tokens", "2"], "without MTP"),
        (["--mtp-draft-tokens", "8"], "between 0 and 7"),
        (["--speculative-widths", "2,4"], "must ascend from 1"),
        (["--speculative-widths", "1,four"], "not a list of numbers"),
        (["--speculative-widths", "1,4", "--mtp-draft-tokens", "7"], "drafts 3 tokens, not 7"),
    ],
)
def test_wishes_that_contradict_one_another_are_refused_before_anything_is_written(
    cores: Path, options: list[str], says: str
) -> None:
    core = cores / "refused"
    shown = CliRunner().invoke(main, ["export", "qwen3.8-flash", str(cores / "checkpoint"), str(core), *options])
    assert shown.exit_code != 0
    assert says in click.unstyle(shown.output)
    assert not core.exists()
