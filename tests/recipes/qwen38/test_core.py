"""`ignition tiny` and `ignition export`: a core with the family's graphs, tensors as stored, defaults and alias."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from recipes.cli import main
from recipes.components.bill import SERVED, TAKEN, as_prepared, bill_of
from recipes.components.safetensors_headers import survey
from recipes.components.table_file import locate
from recipes.components.tensor_store import TensorStore
from recipes.declaration import Device
from recipes.qwen38.checkpoint import Checkpoint
from recipes.qwen38.recipe import Qwen38, settings_of
from shared.mailbox import mailbox_layout
from shared.manifest import Manifest, Storage, read


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny-core")
    for arguments in (
        ["tiny", "qwen3.8-flash", str(path / "checkpoint")],
        ["export", "qwen3.8-flash", str(path / "checkpoint"), str(path / "core")],
    ):
        shown = CliRunner().invoke(main, arguments)
        assert shown.exit_code == 0, shown.output
    return path


@pytest.fixture(scope="module")
def manifest(folder: Path) -> Manifest:
    return read(folder / "core")


def test_concurrency_four_and_five_drafts_give_eighteen_speculative_graphs(manifest: Manifest) -> None:
    assert sum(graph.kind == "speculative" for graph in manifest.graphs) == 18
    assert manifest.verification_widths == (1, 2, 3, 4, 5, 6)


def test_defaults_and_alias_travel_in_the_core(manifest: Manifest) -> None:
    defaults = manifest.defaults
    assert (defaults.temperature, defaults.top_k, defaults.top_p) == (1.0, 20, 0.95)
    assert settings_of(manifest).alias == ("mtp.layers.4", "mtp.layers.0")


def test_tensors_are_copied_bit_for_bit(folder: Path) -> None:
    stored = Checkpoint(folder / "checkpoint")
    copied = TensorStore(survey((folder / "core").glob("*.safetensors")))
    shards = {name for name in stored.tensors.located if ".ngram_embedding.shard_" in name}
    assert copied.located.keys() == stored.tensors.located.keys() - shards | {"ngrams.rows"}
    for name in stored.tensors.located.keys() - shards:
        before, after = stored.tensors.tensor(name), copied.tensor(name)
        assert before.dtype == after.dtype
        assert torch.equal(before.flatten().view(torch.uint8), after.flatten().view(torch.uint8))


def test_rows_of_the_n_gram_table_hold_their_values_and_scales(folder: Path, manifest: Manifest) -> None:
    """Bit for bit what the shards have, row by row; the manifest says where, and how many a round may ask for."""
    stored, core = Checkpoint(folder / "checkpoint"), folder / "core"
    [table] = manifest.embedding_tables
    shards = sorted(
        (name for name in stored.target if ".shard_" in name and name.endswith(".weight")),
        key=lambda name: int(name.split(".shard_")[1].split(".")[0]),
    )
    packed = torch.cat([stored.tensors.tensor(name) for name in shards])
    scales = torch.cat([stored.tensors.tensor(f"{name}_scale").view(torch.uint8) for name in shards])
    rows = torch.from_numpy(np.array(locate(core, table).mapped()))
    assert torch.equal(rows[:, : packed.shape[1]], packed)
    assert torch.equal(rows[:, packed.shape[1] :][:, : scales.shape[1]], scales)
    assert (table.name, table.storage, table.row_bytes % 16) == ("ngrams", "gpu", 0)
    largest = max(graph.token_capacity for graph in manifest.graphs if graph.kind == "prefill")
    assert table.mailbox_ids == largest * stored.architecture.ngram_heads


@pytest.mark.parametrize(("device", "storage"), [("cpu", "gpu"), ("cpu", "ram"), ("cpu", "disk"), ("cuda", "disk")])
def test_the_bill_counts_a_table_where_it_takes_memory(manifest: Manifest, device: Device, storage: Storage) -> None:
    [table] = manifest.embedding_tables
    config = replace(as_prepared(manifest, device), storage=storage, row_cache=5 << 20)
    lines = {line.name: line.nbytes for line in bill_of(Qwen38(), manifest, config)}
    mailbox = mailbox_layout(table.mailbox_ids, table.row_bytes).nbytes
    assert lines.get("embedding tables") == (table.nbytes if storage == "gpu" else None)
    assert lines.get(SERVED) == ((5 << 20) + mailbox if (device, storage) == ("cpu", "disk") else None)
    taken = table.mailbox_ids * (table.row_bytes + 8)
    assert lines.get(TAKEN) == (taken if (device, storage) == ("cuda", "disk") else None)


def test_an_export_over_something_and_a_tiny_one_into_something_are_refused(folder: Path) -> None:
    for command in (
        ["export", "qwen3.8-flash", str(folder / "checkpoint"), str(folder / "core")],
        ["tiny", "qwen3.8-flash", str(folder / "core")],
        ["tiny", "smollm2", str(folder / "new")],
    ):
        assert CliRunner().invoke(main, command).exit_code != 0
