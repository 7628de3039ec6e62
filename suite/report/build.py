"""Build the report of a folder of submissions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suite.report.board import boards
from suite.report.entry import read_entries
from suite.report.markdown import leaderboard_markdown
from suite.report.page import leaderboard_page
from suite.report.tables import leaderboard_csv, leaderboard_json
from suite.runs.atomic import write_atomically

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["build_report"]


def build_report(root: Path, out: Path) -> list[Path]:
    """Write the report of every result at or below ``root`` into ``out``; return its files.

    Equal submissions make equal bytes. Each file is replaced as a whole.

    Raises:
        OSError: where ``out`` cannot be written.

    """
    leaderboards = boards(read_entries(root))
    makers = {
        "index.html": leaderboard_page,
        "leaderboard.md": leaderboard_markdown,
        "leaderboard.csv": leaderboard_csv,
        "leaderboard.json": leaderboard_json,
    }
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for name, make in makers.items():
        write_atomically(out / name, make(leaderboards).encode())
        written.append(out / name)
    return written
