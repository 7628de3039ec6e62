"""Print to the user's terminal: tables, JSON, and text of unknown origin made visible."""

from __future__ import annotations

import json
import shutil
import sys
from typing import TYPE_CHECKING

from suite.report.terminal import table_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["print_json", "print_line", "print_table", "terminal_width"]


def print_line(text: str = "") -> None:
    """Print one line."""
    sys.stdout.write(f"{text}\n")


def print_json(value: object) -> None:
    """Print ``value`` as JSON."""
    # Piece by piece: what was found in a round is large, and its text much larger.
    sys.stdout.writelines(json.JSONEncoder(indent=2, allow_nan=False).iterencode(value))
    print_line()


def print_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table as wide as its text or the terminal."""
    print_line(table_text(heads, rows, terminal_width()))


def terminal_width() -> int:
    """Return how many characters fit on a line; a file has room for 200."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 200
