"""Build the report of a folder of submissions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridperf.report.board import boards
from hybridperf.report.judged import read_entries
from hybridperf.report.markdown import leaderboard_markdown
from hybridperf.report.page import leaderboard_page
from hybridperf.report.tables import leaderboard_csv, leaderboard_json
from hybridperf.run.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from hybridperf.findings import Finding

__all__ = ["build_report", "write_files"]


def build_report(root: Path, out: Path, barred: list[Finding] | None = None) -> list[Path]:
    """Write the report of all results at or below ``root`` to ``out`` and return its files.

    The output is deterministic, and each file is replaced atomically. ``barred`` is that of
    `read_entries`.

    Raises:
        OSError: if ``out`` cannot be written.
    """
    leaderboards = boards(read_entries(root, barred))
    makers = {
        "index.html": leaderboard_page,
        "leaderboard.md": leaderboard_markdown,
        "leaderboard.csv": leaderboard_csv,
        "leaderboard.json": leaderboard_json,
    }
    return write_files(((name, make(leaderboards)) for name, make in makers.items()), out)


def write_files(files: Iterable[tuple[str, str]], out: Path) -> list[Path]:
    """Write pairs of name and text to the folder ``out``, each atomically; return their paths.

    Raises:
        OSError: if ``out`` cannot be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in files:
        write_atomically(out / name, text.encode())
        written.append(out / name)
    return written
