"""What the project publishes of its own: valid by its own rules, and rebuilt to the byte."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hybridperf.log.package import find_results, read_result
from hybridperf.report.build import build_report
from hybridperf.rules.check import check_path
from hybridperf.score.score import score_result
from hybridperf.tasks.data import check_data
from hybridperf.tasks.registry import find_task
from studies.methods.__main__ import METHODS

if TYPE_CHECKING:
    from hybridperf.score.score import ResultScore

ROOT = Path(__file__).parents[1]
SUBMISSIONS = ROOT / "submissions"


@functools.cache
def published() -> list[ResultScore]:
    return [score_result(read_result(package)) for package in find_results(SUBMISSIONS)]


def test_submissions_keep_every_rule_but_that_some_methods_miss_the_target() -> None:
    verdict = check_path(SUBMISSIONS)

    assert {finding.rule for finding in verdict.findings} <= {"result.missed"}
    systems = [Path(finding.path).parts[-2] for finding in verdict.findings]
    _, *delayed_or_compressed = METHODS
    endings = tuple(f"-{method.key}" for method in delayed_or_compressed)
    assert all(system.endswith(endings) for system in systems)


def test_every_published_result_has_all_its_runs() -> None:
    scores = published()

    assert scores
    for score in scores:
        assert len(score.completed) >= find_task(score.benchmark).runs.count


def test_reports_are_what_submissions_make(tmp_path: Path) -> None:
    for name in {score.benchmark for score in published()}:
        data = find_task(name).data
        if check_data(data) != data.sha256:  # then evidence of its results is not counted again
            pytest.skip(f"{name} was trained on another edition of its data than this machine has")
    built = build_report(SUBMISSIONS, tmp_path)

    names = sorted(path.name for path in (ROOT / "reports").iterdir())
    assert names == sorted(path.name for path in built)
    for path in built:
        assert path.read_bytes() == (ROOT / "reports" / path.name).read_bytes(), path.name
