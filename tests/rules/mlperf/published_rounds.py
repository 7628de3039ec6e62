"""The published logs of ten rounds, and what the official tool of each round said of them."""

from __future__ import annotations

import atexit
import contextlib
import csv
import fcntl
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.archives import extract
from tests.tiers import in_tiers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

__all__ = [
    "EDITIONS",
    "ORACLE",
    "TIERS",
    "official_convergence",
    "official_verdicts",
    "published_rounds",
    "unpacked_rounds",
]

SHARED = Path(__file__).parents[3] / ".." / "shared" / "data"
ARCHIVE = SHARED / "rounds_a.tar.xz"
ORACLE = SHARED / "oracle_rounds"
_USED: dict[Path, IO[str]] = {}  #: locks on folders of rounds, until this process ends
EDITIONS = ("1.0", "1.1", "2.0", "2.1", "3.0", "3.1", "4.0", "4.1", "5.0", "5.1")
#: for tests: the oldest, which breaks most rules, and the newest are taken in every run
TIERS = in_tiers(EDITIONS, always=(EDITIONS[0], EDITIONS[-1]))


@contextlib.contextmanager
def published_rounds(factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the folder with the rounds, unpacked if need be; skip where they are not at hand.

    The variable HYBRIDPERF_ROUNDS names a folder in which they are unpacked already.
    """
    if named := os.environ.get("HYBRIDPERF_ROUNDS"):
        yield Path(named)
        return
    if not ARCHIVE.exists():
        pytest.skip("the published logs of ten rounds are not at hand: ../shared/data")
    yield unpacked_rounds(factory.getbasetemp())


def unpacked_rounds(base: Path) -> Path:
    """Unpack the rounds, 1.4 GB, once for all modules and workers of a test run.

    None changes them. The last process that uses them removes them.
    """
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, part = shared / "published_rounds", shared / "published_rounds.part"
    if folder in _USED:
        return folder
    used = _USED[folder] = folder.with_suffix(".used").open("w")
    fcntl.flock(used, fcntl.LOCK_SH)
    with folder.with_suffix(".unpacking").open("w") as unpacking:
        fcntl.flock(unpacking, fcntl.LOCK_EX)
        if not folder.exists():
            shutil.rmtree(part, ignore_errors=True)
            extract(ARCHIVE, part)
            part.rename(folder)
    atexit.register(_leave, folder, used)
    return folder


def _leave(folder: Path, used: IO[str]) -> None:
    """Remove ``folder`` unless another process uses it."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(used, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    used.close()


def official_verdicts(edition: str) -> dict[str, bool]:
    """Return the round's official verdicts, by the path of the log in the round's folder."""
    with (ORACLE / f"v{edition}_log_verdicts.csv").open(newline="") as file:
        return {
            "/".join(
                (row["submitter"], "results", row["system"], row["benchmark"], row["file"])
            ): row["valid"] == "True"
            for row in csv.DictReader(file)
        }


def official_convergence(edition: str) -> dict[str, set[bool]]:
    """Return whether each closed result passed the round's RCP checker, by either count of BERT."""
    found: dict[str, set[bool]] = {}
    with (ORACLE / f"v{edition}_rcp.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["dir"], set()).add(row["result"] == "True")
    return found
