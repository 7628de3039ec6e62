"""How fast rounds of MLPerf are judged and scored in one pass, and the memory that takes.

The variable HYBRIDPERF_ROUNDS names a folder with ten rounds; without it, a sample is measured.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.report.judgement import found_packages, judged_scores
from hybridperf.report.site import site_files
from hybridperf.score.history import with_context
from hybridperf.score.ranking import with_places
from tests.score.ten_rounds import EDITIONS, NEEDS_ROUNDS, unpack_rounds

if TYPE_CHECKING:
    from hybridperf.log.package import Package

pytestmark = NEEDS_ROUNDS
SLOWEST_MB_PER_S = 25.0  #: a third of what an idle machine of 2023 does, for busy ones
PEAK_MB = 100.0


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> list[Package]:
    rounds = unpack_rounds(tmp_path_factory.getbasetemp())
    return found_packages([rounds / f"training_results_v{edition}" for edition in EDITIONS])


def _megabytes(packages: list[Package]) -> float:
    logs = (log for package in packages for log in package.folder.glob("result_*.txt"))
    return sum(log.stat().st_size for log in logs) / 1e6


def test_judge_and_score_in_one_pass(benchmark: Any, packages: list[Package]) -> None:
    took_s = list[float]()

    def score() -> None:
        start_s = time.process_time()
        for package in packages:
            judged_scores([package])
        took_s.append(time.process_time() - start_s)

    benchmark.pedantic(score, rounds=1, iterations=1, warmup_rounds=0)

    rate = _megabytes(packages) / min(took_s)
    benchmark.extra_info["logs, MB"] = round(_megabytes(packages))
    benchmark.extra_info["MB/s of processor time"] = round(rate, 1)
    assert rate > SLOWEST_MB_PER_S


def test_build_the_site(benchmark: Any, packages: list[Package]) -> None:
    results = judged_scores(packages)
    files = list[tuple[str, str]]()

    def build() -> None:
        files[:] = site_files(with_context(with_places(results)))

    benchmark.pedantic(build, rounds=1, iterations=1, warmup_rounds=0)

    benchmark.extra_info["files, MB"] = round(sum(len(text) for _, text in files) / 1e6, 1)


_SCORE = """
import re, sys
from pathlib import Path
from hybridperf.report.judgement import found_packages, judged_scores
for package in found_packages([Path(sys.argv[1])]):
    judged_scores([package])
print(re.search(r"VmHWM:\\s+([0-9]+)", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux' /proc")
def test_the_memory_that_scoring_takes(benchmark: Any, packages: list[Package]) -> None:
    peaks = list[float]()

    def measure() -> None:
        for root in sorted({package.root for package in packages}):
            command = [sys.executable, "-c", _SCORE, str(root)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            peaks.append(int(done.stdout) / 1e3)

    benchmark.pedantic(measure, rounds=1, iterations=1, warmup_rounds=0)

    benchmark.extra_info["peak of a round, MB"] = round(max(peaks))
    assert max(peaks) < PEAK_MB
