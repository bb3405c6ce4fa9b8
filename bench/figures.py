"""How benches print what `recipes.components.diagnostics` measures: one line a comparison."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from recipes.components.diagnostics import Summary

COLUMNS = ("rows", "rel. L2", "worst", "top-10", "KL", "worst KL", "same first", "max |diff|")


def cells(found: Summary, *, logits: bool = True) -> tuple[str, ...]:
    """A summary as the tables of both benches print it; what is not logits has no likely tokens and no law."""
    whole = (
        str(found.rows),
        f"{found.relative_l2:.2e}",
        f"{found.worst_relative_l2:.2e}",
        f"{found.top_overlap:.4f}",
        f"{found.kl:.2e}",
        f"{found.worst_kl:.2e}",
        f"{found.same_first:.4f}",
        f"{found.largest:.2e}",
    )
    return whole if logits else (*whole[:3], *["-"] * 4, whole[-1])


def printed(title: str, lines: Iterable[tuple[str, tuple[str, ...]]]) -> None:
    """Prints a table of named rows of `cells`."""
    table = Table("", *COLUMNS, title=title, title_justify="left")
    for name, row in lines:
        table.add_row(name, *row)
    Console(width=140).print(table)
