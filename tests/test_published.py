"""What the project publishes of its own: valid by its own rules, and rebuilt to the byte."""

from __future__ import annotations

from pathlib import Path

from hybridperf.log.package import find_results, read_result
from hybridperf.report.build import build_report
from hybridperf.rules.check import check_path
from hybridperf.score.score import score_result
from hybridperf.tasks.registry import find_task

ROOT = Path(__file__).parents[1]
SUBMISSIONS = ROOT / "submissions"


def test_submissions_keep_every_rule() -> None:
    verdict = check_path(SUBMISSIONS)

    assert verdict.findings == ()


def test_every_published_result_has_all_its_runs() -> None:
    scores = [score_result(read_result(package)) for package in find_results(SUBMISSIONS)]

    assert scores
    for score in scores:
        assert len(score.completed) >= find_task(score.benchmark).runs.count


def test_reports_are_what_submissions_make(tmp_path: Path) -> None:
    built = build_report(SUBMISSIONS, tmp_path)

    published = sorted(path.name for path in (ROOT / "reports").iterdir())
    assert published == sorted(path.name for path in built)
    for path in built:
        assert path.read_bytes() == (ROOT / "reports" / path.name).read_bytes(), path.name
