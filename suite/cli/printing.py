"""Print to the user's terminal: tables, JSON, and text of unknown origin made visible."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["print_json", "print_line", "print_table"]


def print_line(text: str = "") -> None:
    """Print one line."""
    sys.stdout.write(f"{text}\n")


def print_json(value: object) -> None:
    """Print ``value`` as JSON."""
    print_line(json.dumps(value, indent=2, allow_nan=False))


def print_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table that is as wide as its text; columns of numbers are set flush right."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = [list(row) for row in rows]
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for index, head in enumerate(heads):
        numeric = all(row[index][:1].isdigit() or row[index] in {"", "-"} for row in rows)
        table.add_column(head, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text: what looks like markup is text
    console = Console()
    if not console.is_terminal:  # a file has no width
        console.width = 200
    console.print(table)
