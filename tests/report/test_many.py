"""Of many results, only what scores and pages show is kept: not their logs."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest

from hybridperf.log.package import find_packages, find_results
from hybridperf.report.judgement import judged_scores, read_entries
from tests.packages import write_result
from tests.score.made_up_round import judge_made_up, line, log_lines, write_round

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_FEW, _MANY = 4, 24
_SCORE_BYTES, _ENTRY_BYTES = 30_000, 60_000  #: of a result of five runs; its logs take 300,000


def _growth(work: Callable[[int], object]) -> float:
    """Return the bytes that one more result takes, of those that are kept and at the peak."""
    peaks = []
    for count in (_FEW, _MANY):
        tracemalloc.start()
        kept = work(count)
        assert kept
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    return (peaks[1] - peaks[0]) / (_MANY - _FEW)


def test_own_results_leave_no_logs_in_memory(tmp_path: Path) -> None:
    for count in range(_MANY):
        times_s = [10.0 + count / 7 + run for run in range(5)]
        write_result(tmp_path / str(count), org=f"org{count}", times_s=times_s)
    packages = [find_results(tmp_path / str(count))[0] for count in range(_MANY)]
    judged_scores(packages[:1])  # imports and caches are no part of it
    few = tmp_path / "few"
    few.mkdir()
    for count in range(_FEW):
        (tmp_path / str(count)).rename(few / str(count))
    packages = [*find_results(few), *packages[_FEW:]]

    assert _growth(lambda count: judged_scores(packages[:count])) < _SCORE_BYTES
    read_entries(few)
    assert _growth(lambda count: read_entries(few if count == _FEW else tmp_path)) < _ENTRY_BYTES


@pytest.mark.usefixtures("_made_up")
def test_results_of_rounds_leave_no_logs_in_memory(tmp_path: Path) -> None:
    root = tmp_path / "training_results_v9.0"
    more = [line("weights_initialization", nth) for nth in range(200)]
    for count in range(_MANY):
        logs = [log_lines(100.0 + run) + more for run in range(10)]
        write_round(root, logs, org=f"org{count}")
    packages = find_packages(root)
    judged_scores(packages[:1])

    assert _growth(lambda count: judged_scores(packages[:count])) < _SCORE_BYTES


@pytest.fixture
def _made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    judge_made_up(monkeypatch)


def test_more_than_fifty_thousand_logs_are_not_refused(tmp_path: Path) -> None:
    folder = tmp_path / "acme" / "results" / "laptop" / "resnet-laptop"
    folder.mkdir(parents=True)
    first = folder / "result_0.txt"
    first.touch()
    for number in range(1, 50_002):
        (folder / f"result_{number}.txt").hardlink_to(first)

    (package,) = find_results(tmp_path)

    assert package.folder == folder
