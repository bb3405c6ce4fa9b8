"""What `ignition inspect` shows of a core, or of a checkpoint that might become one: what it holds and what it needs.

Runs in `ignition`. Nothing of a payload is read.
"""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from recipes.components.bill import as_prepared, bill_of
from recipes.components.model import StateBytes
from recipes.declaration import Device, Recipe, Sized
from shared.manifest import EmbeddingTable, Manifest

_FORMATS: dict[Device, str] = {"cpu": "MiB on the CPU, float32", "cuda": "MiB on a GPU"}


def show(title: str, recipe: Recipe, prepared: Manifest, headroom: int) -> None:
    """Prints three tables: what the core holds, its bill by kind with `headroom` bytes kept free, single sizes."""
    devices: tuple[Device, ...] = recipe.devices if isinstance(recipe, Sized) else ("cpu",)
    console = Console()
    console.print(_held(title, prepared))
    console.print(_bill(recipe, prepared, headroom, devices))
    if isinstance(recipe, Sized):
        console.print(_sizes(recipe, prepared, devices))


def _held(title: str, prepared: Manifest) -> Table:
    geometry = prepared.geometry
    held = Table("what", "value", title=title, title_justify="left")
    for what, value in (
        ("model", prepared.model_name),
        ("recipe", prepared.recipe),
        ("arithmetic", prepared.activation_policy),
        ("context", f"{geometry.context_length} tokens"),
        ("concurrency", f"{geometry.concurrency} requests"),
        ("pages", f"{geometry.pages} of {geometry.page_tokens} tokens"),
        ("snapshot slots", str(geometry.snapshot_slots)),
        *(("embedding table", _table(table)) for table in prepared.embedding_tables),
        ("graphs", _graphs(prepared)),
        ("serving", " and ".join(_modes(prepared))),
        ("verification widths", ", ".join(map(str, prepared.verification_widths))),
        ("verification", "adaptive" if prepared.adaptive_verification else "fixed"),
        ("history drafts", "on" if prepared.history_drafts else "off"),
    ):
        held.add_row(what, value)
    return held


def _table(table: EmbeddingTable) -> str:
    size = f"{table.rows:,} rows of {table.row_bytes} bytes, {_mib(table.nbytes)} MiB"
    return f"{table.name}: {size}, in {table.storage} by default; a round asks for {table.mailbox_ids:,} at most"


def _graphs(prepared: Manifest) -> str:
    kinds = dict.fromkeys(graph.kind for graph in prepared.graphs)
    counts = {kind: sum(graph.kind == kind for graph in prepared.graphs) for kind in kinds}
    return f"{len(prepared.graphs)}: " + ", ".join(f"{count} {kind}" for kind, count in counts.items())


def _modes(prepared: Manifest) -> list[str]:
    kinds = {graph.kind for graph in prepared.graphs}
    return [mode for mode, kind in (("speculative", "speculative"), ("ordinary", "decode")) if kind in kinds]


def _mib(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):,.1f}"


def _bill(recipe: Recipe, prepared: Manifest, headroom: int, devices: tuple[Device, ...]) -> Table:
    table = _columns("bill", devices)
    free = StateBytes("headroom", headroom)
    bills = [(*bill_of(recipe, prepared, as_prepared(prepared, device)), free) for device in devices]
    by_name = [{line.name: line.nbytes for line in lines} for lines in bills]
    for name in dict.fromkeys(line.name for lines in bills for line in lines):
        table.add_row(name, *(_mib(found[name]) if name in found else "" for found in by_name))
    table.add_section()
    table.add_row("total", *(_mib(sum(found.values())) for found in by_name))
    return table


def _sizes(recipe: Sized, prepared: Manifest, devices: tuple[Device, ...]) -> Table:
    table = _columns("sizes", devices, "bytes")
    for lines in zip(*(recipe.sizes(prepared, device) for device in devices), strict=True):
        table.add_row(lines[0].name, *(f"{line.nbytes:,}" for line in lines))
    return table


def _columns(what: str, devices: tuple[Device, ...], unit: str = "MiB") -> Table:
    table = Table(what, title_justify="left")
    for device in devices:
        table.add_column(_FORMATS[device].replace("MiB", unit), justify="right")
    return table
