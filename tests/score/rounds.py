"""MLPerf's published logs and what the official tools said of them, where they are present."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from hybridperf.log.package import find_packages, read_package
from hybridperf.score.official import Official, official_score
from hybridperf.score.rcp import RcpSet, read_rcp_set
from hybridperf.score.score import ResultScore, score_result
from tests.archives import extract
from tests.packages import VALID

if TYPE_CHECKING:
    from hybridperf.log.package import Result
    from hybridperf.score.rcp import Mode

DATA: Final = Path(__file__).parents[3] / "shared" / "data"
NEEDS_DATA: Final = pytest.mark.skipif(
    not (DATA / "mlperf_rounds.tar.xz").is_file(),
    reason="MLPerf's logs are not in ../shared/data; they are not part of the project",
)


def unpack(folder: Path) -> Path:
    extract(DATA / "mlperf_rounds.tar.xz", folder)
    return folder


@cache
def reference_points() -> RcpSet:
    return read_rcp_set(DATA / "rcp_v2.1")


def oracle(name: str) -> list[dict[str, str]]:
    with (DATA / "oracle" / name).open(newline="") as file:
        return list(csv.DictReader(file))


@cache
def _scored(root: Path) -> list[tuple[Result, ResultScore]]:
    results = (read_package(package) for package in find_packages(root))
    return [(result, score_result(result)) for result in results]


def officials(root: Path, mode: Mode) -> dict[tuple[str, ...], Official]:
    """Return every result of a round by submitter, system and benchmark."""
    return {
        (result.package.org, result.package.system, result.package.benchmark): official_score(
            result, score, VALID, reference_points(), mode
        )
        for result, score in _scored(root)
    }
