"""The memory bill at full geometry, by kind, against the figures of mtp-design.md, "Memory and compact recurrence"."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path

import msgspec
import pytest
import torch
from click.testing import CliRunner

from recipes.cli import main
from recipes.components.bill import as_prepared, bill_of
from recipes.declaration import Device, LoadConfig, PreparationConfig
from recipes.qwen38.device_core import load_core
from recipes.qwen38.device_target import DeviceTarget
from recipes.qwen38.memory import PACKED, REFERENCE, Counts, items, record_bytes, row_bytes, token_bytes
from recipes.qwen38.mtp import DrafterWeights, MtpDrafter, MtpLayer
from recipes.qwen38.recipe import Qwen38, settings_of
from recipes.qwen38.target import Target, TargetWeights
from recipes.qwen38.tiny import tiny_architecture, write_tiny
from shared.manifest import Manifest, read
from tests.recipes.qwen38.test_checkpoint import MTP_BYTES, full_architecture, write_sparse

MIB, GIB = 1 << 20, 1 << 30
DOCUMENT = Path(__file__).parents[3] / "docs" / "qwen38.md"


@dataclass(frozen=True, slots=True)
class Inspected:
    """What `ignition inspect` printed, the manifest that it was about, and the seconds of computing it took."""

    output: str
    planned: Manifest
    seconds: float


@pytest.fixture(scope="module")
def inspected(tmp_path_factory: pytest.TempPathFactory) -> Inspected:
    """One inspection of a checkpoint of the published geometry: real headers over holes."""
    folder, kept, plan = tmp_path_factory.mktemp("sparse-qwen"), list[Manifest](), Qwen38.plan
    write_sparse(folder, full_architecture())

    def keeping(self: Qwen38, checkpoint: Path, config: PreparationConfig) -> Manifest:
        kept.append(plan(self, checkpoint, config))
        return kept[-1]

    arguments = ["inspect", str(folder), "--recipe", "qwen3.8-flash", "--headroom", "2GiB"]
    arguments += ["--context-length", "262144", "--prefill-buckets", "512,4096"]
    started = time.process_time()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Qwen38, "plan", keeping)
        shown = CliRunner(env={"COLUMNS": "120"}).invoke(main, arguments)
    assert shown.exit_code == 0, shown.output
    return Inspected(shown.output, kept[0], time.process_time() - started)


@pytest.fixture(scope="module")
def planned(inspected: Inspected) -> Manifest:
    return inspected.planned


def lines(planned: Manifest, device: Device) -> dict[str, int]:
    return {line.name: line.nbytes for line in bill_of(Qwen38(), planned, as_prepared(planned, device))}


def sizes(planned: Manifest, device: Device) -> dict[str, int]:
    return {line.name: line.nbytes for line in Qwen38().sizes(planned, device)}


def test_single_sizes_are_the_designs(planned: Manifest) -> None:
    found = sizes(planned, "cuda")
    assert found["recurrent matrices of a position"] == 108 * MIB
    assert found["a cached token, draft layer"] == 2_112
    assert found["a context of 262,144 tokens, draft layer"] == 528 * MIB
    assert found["draft tail of a request"] == 20 << 10
    assert found["residual streams of 4,096 rows"] == 80 * MIB
    # Twelve such layers in the target.
    assert found["a cached token, target layers"] == 12 * 2_112


def test_the_columns_that_the_compact_recurrence_saves_are_the_designs(planned: Manifest) -> None:
    found = sizes(planned, "cuda")
    seven, fifteen = (found[f"columns of 4 requests, {count} positions more"] for count in (7, 15))
    assert round(seven / GIB, 3) == 2.953
    assert round(fifteen / GIB, 3) == 6.328
    records = found["records of 4 requests, 8 rows"]
    assert records == 4 * 8 * found["records of a verified row instead"]
    assert records * 40 < seven


def test_records_of_a_row_are_corrections_keys_and_decays(planned: Manifest) -> None:
    """36 layers; 48 value heads of 128, 16 key heads of 128, a decay a value head, and the convolution's inputs."""
    by_name = {item.name: item.nbytes for item in record_bytes(full_architecture(), PACKED)}
    assert by_name == {
        "corrections": 36 * 48 * 128 * 4,
        "normalised keys": 36 * 16 * 128 * 4,
        "decays": 36 * 48 * 4,
        "convolution inputs": 36 * (2 * 2048 + 6144) * 2,
    }
    assert sum(by_name.values()) == sizes(planned, "cuda")["records of a verified row instead"]


def test_the_bill_names_every_kind_and_counts_it_for_four_requests_of_full_context(planned: Manifest) -> None:
    found = lines(planned, "cuda")
    tokens = planned.geometry.pages * 64
    assert tokens >= 4 * 262_144
    assert found["weights, drafter"] == MTP_BYTES
    assert found["pages, draft layer"] == tokens * 2_112
    assert found["pages, target layers"] == tokens * 12 * 2_112
    assert found["recurrent matrices"] == 4 * 108 * MIB
    assert found["draft tails"] == 4 * (20 << 10)
    assert found["penalties"] == 4 * 248_320 * (4 + 1)
    assert found["logits"] == 4 * 8 * 248_320 * 4
    assert found["residual streams"] == 80 * MIB + 4 * 8 * (20 << 10)
    assert found["snapshots"] == planned.geometry.snapshot_slots * row_bytes(full_architecture(), True, PACKED)
    kinds = ("weights, target", "histories and rings", "scratch, estimated", "frames", "sampling vectors", "draft laws")
    for kind in kinds:
        assert found[kind] > 0


def test_a_core_without_a_drafter_is_billed_none(planned: Manifest) -> None:
    settings = msgspec.structs.replace(settings_of(planned), drafter=False)
    without = lines(msgspec.structs.replace(planned, settings=msgspec.Raw(msgspec.json.encode(settings))), "cuda")
    assert not [name for name in without if "draft" in name]
    assert sum(without.values()) < sum(lines(planned, "cuda").values()) - MTP_BYTES


def test_the_cpus_bill_is_what_its_tensors_take() -> None:
    """The reference format, against a target and a drafter that were really allocated, at tiny widths."""
    a = tiny_architecture()
    weights = TargetWeights.__new__(TargetWeights)
    target = Target(a, weights, LoadConfig(False, slots=3, pages=5, snapshots=2))
    cached = sum(part.nbytes for cache in target.caches.values() for part in (cache.keys, cache.values, cache.groups))
    assert cached == 5 * 64 * token_bytes(a, 1, REFERENCE)
    state = target.state
    recurrent = sum(
        part.nbytes for layer in state.layers for part in (state.matrices[layer], state.convolutions[layer])
    )
    rings = sum(ring.nbytes for cache in target.caches.values() for ring in (cache.rings.keys, cache.rings.tags))
    held = recurrent + rings + state.ngram_history.nbytes + state.tokens.nbytes
    assert held == (3 + 2) * row_bytes(a, False, REFERENCE)
    layer = MtpLayer(a, DrafterWeights.__new__(DrafterWeights), pages=5, rows=3 + 2)
    drafter = MtpDrafter(layer, slots=3, rows=3 + 2, width=a.streams_width)
    pages = drafter.cache
    rings, tails = pages.rings.keys.nbytes + pages.rings.tags.nbytes, drafter.tails.nbytes + drafter.consumed.nbytes
    assert rings + tails == (3 + 2) * (row_bytes(a, True, REFERENCE) - row_bytes(a, False, REFERENCE))
    billed = {item.name: item.nbytes for item in items(a, True, Counts(5, 3, 2, 32), REFERENCE)}
    assert pages.keys.nbytes + pages.values.nbytes + pages.groups.nbytes == billed["pages, draft layer"]
    assert cached == billed["pages, target layers"]
    rows = ("recurrent matrices", "histories and rings", "draft tails", "snapshots")
    assert held + rings + tails == sum(billed[name] for name in rows)


def storages(held: object) -> dict[int, int]:
    """Bytes of every storage that an object of the recipes holds, by address; views count once."""
    if isinstance(held, torch.Tensor):
        storage = held.untyped_storage()
        return {storage.data_ptr(): storage.nbytes()}
    parts: Iterable[object] = ()
    if isinstance(held, dict):
        parts = held.values()
    elif isinstance(held, tuple | list):
        parts = held
    elif is_dataclass(held):
        parts = [getattr(held, field.name) for field in fields(held)]
    elif type(held).__module__.startswith("recipes."):
        parts = getattr(held, "__dict__", {}).values()
    found: dict[int, int] = {}
    for part in parts:
        found |= storages(part)
    return found


def test_a_devices_bill_is_what_its_tensors_take(tmp_path: Path) -> None:
    """Weights and state of target and drafter as a GPU has them, really loaded, at tiny widths."""
    write_tiny(tmp_path / "checkpoint", tiny_architecture(), seed=2)
    config = PreparationConfig(context_length=256, snapshot_slots=3, concurrency=2)
    Qwen38().export(tmp_path / "checkpoint", tmp_path / "core", config, lambda what, done, total: None)
    manifest = read(tmp_path / "core")
    sizes_of = manifest.geometry
    load = LoadConfig(False, sizes_of.concurrency, sizes_of.pages, sizes_of.snapshot_slots, device="cuda")
    billed = {item.name: item.nbytes for item in Qwen38().bill(manifest, load)}
    loaded = load_core(tmp_path / "core", manifest, load, torch.device("cpu"), torch.bfloat16)
    target, drafter = loaded.model, loaded.drafter
    assert isinstance(target, DeviceTarget)
    table = target._weights.table
    weights = storages((target._weights, vars(drafter)["_weights"]))
    state = storages((target, drafter))
    kinds = ("weights, target", "weights, drafter", "weights, widened")
    apart = sum(storages((table, target._weights.table_scale)).values())
    assert sum(weights.values()) - apart == sum(billed[kind] for kind in kinds)
    rows = ("recurrent matrices", "histories and rings", "draft tails", "snapshots", "a row and a page of nobody")
    pages = ("pages, target layers", "pages, draft layer", "rotations")
    held = sum(nbytes for address, nbytes in state.items() if address not in weights)
    # A device keeps fault bits for each row, and no count of absorbed tokens.
    others = (load.slots + load.snapshots + 1) * (4 - 8)
    assert held == sum(billed[kind] for kind in (*rows, *pages)) + others


def test_inspect_prints_the_bill_of_a_checkpoint_within_seconds(inspected: Inspected) -> None:
    output, planned = inspected.output, inspected.planned
    assert inspected.seconds < 60, "of this process alone; five on a quiet machine"
    for name, nbytes in lines(planned, "cuda").items():
        assert re.search(rf"{re.escape(name)} +│ +[\d,.]* │ +{nbytes / MIB:,.1f} │", output), name
    assert re.search(r"headroom +│ +2,048\.0 │ +2,048\.0 │", output)
    for name, nbytes in sizes(planned, "cuda").items():
        assert re.search(rf"{re.escape(name)} +│ +[\d,]+ │ +{nbytes:,} │", output), name


def test_the_document_has_the_sizes_that_inspect_prints(planned: Manifest) -> None:
    text = DOCUMENT.read_text()
    for name, nbytes in sizes(planned, "cuda").items():
        assert re.search(rf"\| {re.escape(name)} \| {nbytes:,} \|", text), (name, nbytes)


def test_options_of_a_preparation_do_not_go_with_a_core(tmp_path: Path) -> None:
    shown = CliRunner().invoke(main, ["inspect", str(tmp_path), "--mtp-only", "--context-length", "5"])
    assert shown.exit_code == 2
    assert "--context-length, --mtp-only" in shown.output
