"""Rows as a table for the console."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

# Wider than any table: no line is cut off or wrapped.
_WIDTH = 10_000


def grid(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table of numbers and texts, without colours; numbers are at the right."""
    table = Table(box=None, pad_edge=False)
    for place, name in enumerate(header):
        numbers = all(isinstance(row[place], int | float | None) for row in rows)
        table.add_column(name, justify="right" if numbers else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(_cell, row))
    console = Console(file=io.StringIO(), width=_WIDTH, markup=False, emoji=False, highlight=False)
    console.print(table)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
