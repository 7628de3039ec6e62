"""Ten published rounds of MLPerf, and what the official tool of each said of them.

The variable HYBRIDPERF_ROUNDS names a folder with all rounds unpacked, for a run over all results;
without it, a sample of every benchmark of every round is taken.
"""

from __future__ import annotations

import csv
import os
import shutil
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from hybridperf.score.rcp import RcpSets, read_rcp_sets
from hybridperf.score.validity import Judgement, Validity
from tests.rules.mlperf.published_rounds import unpacked_rounds

DATA: Final = Path(__file__).parents[3] / "shared" / "data"
ARCHIVE: Final = DATA / "rounds_a.tar.xz"
ORACLE: Final = DATA / "oracle_rounds"
EDITIONS: Final = ("1.0", "1.1", "2.0", "2.1", "3.0", "3.1", "4.0", "4.1", "5.0", "5.1")
WHOLE: Final = "HYBRIDPERF_ROUNDS"
NEEDS_ROUNDS: Final = pytest.mark.skipif(
    not ARCHIVE.is_file(),
    reason="ten rounds of MLPerf are not in ../shared/data; they are not part of the project",
)
#: results of the sample of a benchmark in a round
_MOST_SAMPLED: Final = 2


class Name(NamedTuple):
    """Which result: submitter, system and benchmark."""

    org: str
    system: str
    benchmark: str


def unpack_rounds(base: Path) -> Path:
    """Return the folder of all rounds, or of the sample, made in ``base`` once."""
    folder = base / "ten_rounds"
    if whole := os.environ.get(WHOLE):
        return Path(whole)
    if folder.is_dir():
        return folder
    rounds = unpacked_rounds(base)
    for edition in EDITIONS:
        for name in _sample(edition):
            org = Path(f"training_results_v{edition}", name.org)
            result = org / "results" / name.system / name.benchmark
            shutil.copytree(rounds / result, folder / result, copy_function=os.link)
            system = org / "systems" / f"{name.system}.json"
            (folder / system).parent.mkdir(exist_ok=True)
            if (rounds / system).exists() and not (folder / system).exists():
                os.link(rounds / system, folder / system)
    return folder


def _sample(edition: str) -> list[Name]:
    """Return some results of every benchmark: first those with a missed run or a factor."""
    by_benchmark: dict[str, list[tuple[bool, Name]]] = {}
    for row in rows(f"v{edition}_scores.csv"):
        odd = row["valid_runs"] != row["runs"] or row["rcp_factor"] != "1.0" or bool(row["note"])
        name = Name(row["submitter"], row["system"], row["benchmark"])
        if (f"v{edition}", name) not in _left_out():
            by_benchmark.setdefault(name.benchmark, []).append((not odd, name))
    return [name for names in by_benchmark.values() for _, name in sorted(names)[:_MOST_SAMPLED]]


@cache
def _left_out() -> frozenset[tuple[str, Name]]:
    return frozenset(
        (row["round"], Name(row["submitter"], row["system"], row["benchmark"]))
        for row in rows("half_a_left_out.csv")
    )


def rows(name: str) -> list[dict[str, str]]:
    with (ORACLE / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@cache
def official_verdicts(edition: str) -> dict[Name, dict[str, str]]:
    """Return the first error of every log, "" if it is valid, by result and file."""
    found: dict[Name, dict[str, str]] = {}
    for row in rows(f"v{edition}_log_verdicts.csv"):
        name = Name(row["submitter"], row["system"], row["benchmark"])
        error = "" if row["valid"] == "True" else row["first_message"] or "invalid"
        found.setdefault(name, {})[row["file"]] = error
    return found


def official_validity(edition: str, name: Name, files: list[str]) -> Validity:
    verdicts = official_verdicts(edition)[name]
    errors = {number: verdicts[file] for number, file in enumerate(files) if verdicts[file]}
    ruleset = f"mlperf-training-{edition}.0"
    return Validity(Judgement.VALID, "", ruleset, len(files), errors)


@cache
def reference_sets() -> RcpSets:
    return read_rcp_sets(DATA / "rcp")
