"""Build the report of a folder of submissions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridperf.report.board import boards, read_entries
from hybridperf.report.markdown import leaderboard_markdown
from hybridperf.report.page import leaderboard_page
from hybridperf.report.tables import leaderboard_csv, leaderboard_json
from hybridperf.run.atomic import write_atomically

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["build_report"]


def build_report(root: Path, out: Path) -> list[Path]:
    """Write the report of all results at or below ``root`` to ``out`` and return its files.

    The output is deterministic, and each file is replaced atomically.

    Raises:
        OSError: if ``out`` cannot be written.
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
