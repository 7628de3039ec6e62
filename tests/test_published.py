"""What the project publishes of its own: valid by its own rules, and rebuilt to the byte."""

from __future__ import annotations

from pathlib import Path

from suite.logs.package import find_results, read_result
from suite.report.build import build_report
from suite.rules.check import check_path
from suite.scores.score import score_result
from suite.tasks.registry import find_task

ROOT = Path(__file__).parents[1]
SUBMISSIONS = ROOT / "submissions"


def test_submissions_keep_every_rule() -> None:
    verdict = check_path(SUBMISSIONS)

    assert verdict.findings == ()


def test_the_laptop_task_is_published_under_three_plans_or_more_with_all_its_runs() -> None:
    scores = [score_result(read_result(package)) for package in find_results(SUBMISSIONS)]

    laptop = [score for score in scores if score.benchmark == "resnet/laptop"]
    assert len({score.plan for score in laptop}) >= 3
    count = find_task("resnet/laptop").runs.count
    assert all(len(score.completed) >= count for score in laptop)


def test_reports_are_what_submissions_make(tmp_path: Path) -> None:
    built = build_report(SUBMISSIONS, tmp_path)

    published = sorted(path.name for path in (ROOT / "reports").iterdir())
    assert published == sorted(path.name for path in built)
    for path in built:
        assert path.read_bytes() == (ROOT / "reports" / path.name).read_bytes(), path.name
