"""The published logs of ten rounds, and what the official tool of each round said of them."""

from __future__ import annotations

import atexit
import contextlib
import csv
import os
import shutil
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["EDITIONS", "ORACLE", "official_verdicts", "published_rounds"]

SHARED = Path(__file__).parents[3] / ".." / "shared" / "data"
ORACLE = SHARED / "oracle_rounds"
_UNPACKED: list[Path] = []
EDITIONS = ("1.0", "1.1", "2.0", "2.1", "3.0", "3.1", "4.0", "4.1", "5.0", "5.1")


@contextlib.contextmanager
def published_rounds(factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the folder with the rounds, unpacked if need be; skip where they are not at hand.

    The variable HYBRIDPERF_ROUNDS names a folder in which they are unpacked already.
    """
    if named := os.environ.get("HYBRIDPERF_ROUNDS"):
        yield Path(named)
        return
    if not (archive := SHARED / "rounds_a.tar.xz").exists():
        pytest.skip("the published logs of ten rounds are not at hand: ../shared/data")
    yield _unpacked(archive, factory)


def _unpacked(archive: Path, factory: pytest.TempPathFactory) -> Path:
    """Unpack the rounds once for all modules of a test run, none of which changes them."""
    if not _UNPACKED:
        folder = factory.mktemp("rounds")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)  # 1.4 GB
        with tarfile.open(archive) as content:
            content.extractall(folder, filter="data")
        _UNPACKED.append(folder)
    return _UNPACKED[0]


def official_verdicts(edition: str) -> dict[str, bool]:
    """Return the round's official verdicts, by the path of the log in the round's folder."""
    with (ORACLE / f"v{edition}_log_verdicts.csv").open(newline="") as file:
        return {
            "/".join(
                (row["submitter"], "results", row["system"], row["benchmark"], row["file"])
            ): row["valid"] == "True"
            for row in csv.DictReader(file)
        }
