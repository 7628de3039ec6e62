"""How fast rounds of MLPerf are checked and scored, on one core.

Limit: parsing every MLLOG line, and doing nothing with it, by the fastest JSON library found
(msgspec; orjson took 1.14 times as long). What is compared is processor time, in turn.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from hybridperf.log.rounds import find_packages, read_package
from hybridperf.rules.mlperf.check_round import check_published_result
from hybridperf.rules.mlperf.ruleset import load_ruleset
from hybridperf.score.official import official_score
from hybridperf.score.score import score_result
from tests.score.rounds import NEEDS_DATA, reference_points, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from hybridperf.rules.mlperf.check_round import Mode

ROUNDS = 7
RULESETS = {"training_results_v2.0": "2.0.0", "training_results_v2.1": "2.1.0"}
TOKEN = b":::MLLOG"


@pytest.fixture
def one_core() -> Iterator[None]:
    """Run on one core only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@NEEDS_DATA
@pytest.mark.parametrize("mode", ["as-published", "strict"])
@pytest.mark.usefixtures("one_core")
def test_check_and_score_two_rounds(benchmark: Any, tmp_path: Path, mode: Mode) -> None:
    logs = list(unpack(tmp_path).rglob("result_*.txt"))
    megabytes = sum(log.stat().st_size for log in logs) / 1e6
    ours_s, bare_s = list[float](), list[float]()

    def pair() -> None:
        bare_s.append(_seconds(lambda: _parse(logs)))
        ours_s.append(_seconds(lambda: _check_and_score(tmp_path, mode)))

    benchmark.pedantic(pair, rounds=ROUNDS, iterations=1, warmup_rounds=1)

    ratios = [ours / bare for ours, bare in zip(ours_s, bare_s, strict=True)]
    benchmark.extra_info["logs"] = len(logs)
    benchmark.extra_info["MB/s, median"] = round(megabytes / statistics.median(ours_s), 1)
    benchmark.extra_info["MB/s of the bare parse, median"] = round(
        megabytes / statistics.median(bare_s), 1
    )
    benchmark.extra_info["time over the bare parse's, median"] = round(statistics.median(ratios), 2)


def _check_and_score(folder: Path, mode: Mode) -> None:
    for name, version in RULESETS.items():
        ruleset = load_ruleset(f"mlperf-training-{version}")
        for package in find_packages(folder / name):
            result = read_package(package)
            check_published_result(result, ruleset, mode)
            official_score(result, score_result(result), reference_points())


def _parse(logs: list[Path]) -> None:
    for log in logs:
        content = log.read_bytes()
        end = 0
        while (start := content.find(TOKEN, end)) >= 0:
            end = content.find(b"\n", start)
            end = len(content) if end < 0 else end
            msgspec.json.decode(content[start + len(TOKEN) : end])


def _seconds(work: Callable[[], None]) -> float:
    start_s = time.process_time()
    work()
    return time.process_time() - start_s
