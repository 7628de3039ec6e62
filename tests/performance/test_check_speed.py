"""How fast rounds of MLPerf are checked and scored, on one core.

Limit: parsing every MLLOG line, and doing nothing with it, by the fastest JSON library found
(msgspec; orjson took 1.14 times as long). What is compared is processor time, in turn.
"""

from __future__ import annotations

import os
import resource
import statistics
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from hybridperf.log.package import find_packages, read_package
from hybridperf.rules.check import check_path, judge_result
from hybridperf.rules.verdict import Outcome
from hybridperf.score.official import official_score
from hybridperf.score.score import score_result
from tests.packages import VALID
from tests.rules.mlperf.published_rounds import EDITIONS, published_rounds
from tests.score.rounds import NEEDS_DATA, reference_points, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from hybridperf.rules.check import Mode

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


@pytest.mark.parametrize("mode", ["as-published", "strict"])
@pytest.mark.usefixtures("one_core")
def test_check_ten_rounds(
    benchmark: Any, tmp_path_factory: pytest.TempPathFactory, mode: Mode
) -> None:
    """Check 1.4 GB, once: 100 MB/s of processor time as published and 75 strictly are wanted."""
    with published_rounds(tmp_path_factory) as rounds:
        folders = [rounds / f"training_results_v{edition}" for edition in EDITIONS]
        logs = [log for each in folders for log in each.rglob("result_*.txt")]
        sizes = [log.stat().st_size for log in logs]
        verdicts = list[bool]()

        def check() -> None:
            for folder, edition in zip(folders, EDITIONS, strict=True):
                verdict = check_path(folder, f"mlperf-training-{edition}.0", mode)
                verdicts.extend(log.outcome is Outcome.VALID for log in verdict.all_logs)

        bare_s = _seconds(lambda: _parse(logs))
        took_s = benchmark.pedantic(lambda: _seconds(check), rounds=1, iterations=1)

    assert len(verdicts) == len(logs)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    benchmark.extra_info["logs, valid and all"] = f"{sum(verdicts)} of {len(logs)}"
    benchmark.extra_info["MB/s"] = round(sum(sizes) / 1e6 / took_s, 1)
    benchmark.extra_info["MB/s of the bare parse"] = round(sum(sizes) / 1e6 / bare_s, 1)
    benchmark.extra_info["time over the bare parse's"] = round(took_s / bare_s, 2)
    benchmark.extra_info["peak of the process, MiB"] = round(peak_mb)


@pytest.mark.parametrize("jobs", [1, 2])
def test_check_a_round_in_several_processes(
    benchmark: Any, tmp_path_factory: pytest.TempPathFactory, jobs: int
) -> None:
    """Check one round by ``jobs`` processes: their processor time together, and the wall time."""
    with published_rounds(tmp_path_factory) as rounds:
        folder = rounds / "training_results_v4.0"
        ruleset = "mlperf-training-4.0.0"
        before = os.times()
        benchmark.pedantic(
            lambda: check_path(folder, ruleset, "as-published", jobs), rounds=3, iterations=1
        )
        after = os.times()

    spent = [
        getattr(after, name) - getattr(before, name)
        for name in ("user", "system", "children_user", "children_system")
    ]
    benchmark.extra_info["processor seconds a check"] = round(sum(spent) / 3, 2)


def _check_and_score(folder: Path, mode: Mode) -> None:
    for name, version in RULESETS.items():
        ruleset = f"mlperf-training-{version}"
        for package in find_packages(folder / name):
            result = read_package(package)
            judge_result(result, ruleset, mode)
            official_score(result, score_result(result), VALID, reference_points())


def _parse(logs: list[Path]) -> None:
    for log in logs:
        content = log.read_bytes()
        end = 0
        while (start := content.find(TOKEN, end)) >= 0:
            end = content.find(b"\n", start)
            end = len(content) if end < 0 else end
            try:
                msgspec.json.decode(content[start + len(TOKEN) : end])
            except msgspec.DecodeError:  # published, and refused
                continue


def _seconds(work: Callable[[], None]) -> float:
    start_s = time.process_time()
    work()
    return time.process_time() - start_s
