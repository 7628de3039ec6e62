"""Is a result slower than its baseline? The decision, its false alarms, and `compare`'s status."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.cli.main import main
from hybridperf.errors import ExitCode, UserError
from hybridperf.log.package import find_packages, read_result
from hybridperf.regression import Baseline, Regression, parse_percentage
from hybridperf.report.judgement import judged_entries
from hybridperf.score.compare import compare
from hybridperf.score.official import official_of
from tests.packages import VALID, edit_manifest, seal, write_result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridperf.report.judgement import JudgedResult
    from hybridperf.score.official import Official

RESULTS = Path(__file__).parents[1] / "submissions/hybridperf/results"
BASE_S = (10.0, 10.1, 10.2, 10.3, 10.4)


def _judged(root: Path, **how: Any) -> JudgedResult:
    (entry,) = judged_entries([write_result(root, **how)])
    return entry


@pytest.mark.parametrize(("text", "share"), [("3%", 0.03), ("2.5 %", 0.025), ("0%", 0.0)])
def test_a_limit_is_a_percentage(text: str, share: float) -> None:
    assert parse_percentage(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["3", "-3%", "nan%", "%", "3%%", ""])
def test_any_other_limit_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"expected a percentage, .*; write it as 3%"):
        parse_percentage(text)


@pytest.mark.parametrize(
    ("factor", "limit", "outcome"),
    [
        (1.2, 0.03, "slower"),
        (1.2, 0.3, "not slower"),
        (1.2, 0.21, "undecided"),  # slower, perhaps by more than 21 %
        (1.0, 0.03, "not slower"),
        (1.01, 0.01, "undecided"),
        (0.5, 0.0, "not slower"),
    ],
)
def test_slower_and_not_slower_are_both_shown_or_it_is_undecided(
    tmp_path: Path, factor: float, limit: float, outcome: str
) -> None:
    times_s = [factor * each for each in BASE_S]
    a = _judged(tmp_path / "a", times_s=BASE_S)
    b = _judged(tmp_path / "b", times_s=times_s)

    regression = Regression(compare(a.official, b.official), limit)

    assert regression.outcome == outcome
    assert f"{factor:.3f} times the mean time of the baseline" in regression.sentence
    assert json.dumps(regression.as_json(), allow_nan=False)


def test_one_run_of_each_is_undecided(tmp_path: Path) -> None:
    a = _judged(tmp_path / "a", times_s=[10.0])
    b = _judged(tmp_path / "b", times_s=[20.0])

    regression = Regression(compare(a.official, b.official), 0.03)

    assert regression.outcome == "undecided"
    assert "2.000 times" in regression.sentence
    assert "a test takes two runs of each result" in regression.sentence


def _published(plan: str) -> Official:
    (package,) = find_packages(RESULTS / f"2c-amd-epyc-{plan}/resnet-laptop")
    return official_of(read_result(package), VALID)


def _drawn(official: Official, runs: Sequence[int]) -> Official:
    """Return the result of a few of its runs."""
    score = official.score
    some = tuple(dataclasses.replace(score.runs[run], in_window=True) for run in runs)
    return dataclasses.replace(official, score=dataclasses.replace(score, runs=some))


@pytest.mark.parametrize("runs", [3, 5])
def test_at_most_one_in_twenty_is_a_false_alarm_on_published_runs(runs: int) -> None:
    published, slow = _published("2bw"), _published("gropipe")
    every = [at for at, run in enumerate(published.score.runs) if run.completion == "reached"]
    assert len(every) == 10
    generator, draws = random.Random(20_261_125), 150
    equal = []
    for _ in range(draws):
        drawn = generator.sample(every, 2 * runs)
        a, b = _drawn(published, drawn[:runs]), _drawn(published, drawn[runs:])
        equal.append(Regression(compare(a, b), 0.03))

    assert sum(each.outcome == "slower" for each in equal) / draws <= 0.05
    ratios = [each.comparison.decision.ratio or 0.0 for each in equal]
    assert sum(ratio > 1.05 for ratio in ratios) / draws > 0.2, "as means alone would alarm"
    assert Regression(compare(a, _drawn(slow, range(runs))), 0.03).outcome == "slower"


def test_the_baseline_of_a_result_has_its_task_and_plan(tmp_path: Path) -> None:
    for plan in ("dp=1", "dp=2"):
        write_result(tmp_path / "base", plan=plan, system=plan.replace("=", ""), times_s=BASE_S)
    b = _judged(tmp_path / "b", plan="dp=1", times_s=[2 * each for each in BASE_S])

    regression = Baseline(tmp_path / "base").compared_with(b, 0.03)

    assert regression.outcome == "slower"
    assert regression.comparison.a.score.plan == "dp=1"


def test_the_folder_of_one_result_is_the_baseline_of_any_plan(tmp_path: Path) -> None:
    base = write_result(tmp_path / "base", plan="dp=1", times_s=BASE_S)
    b = _judged(tmp_path / "b", plan="dp=2", times_s=BASE_S)

    assert Baseline(base.folder).compared_with(b, 0.03).outcome == "not slower"
    with pytest.raises(UserError, match="expected one result of resnet/laptop under dp=2, found"):
        Baseline(tmp_path / "base").compared_with(b, 0.03)


def test_a_folder_without_results_is_no_baseline(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected results of earlier runs, found none"):
        Baseline(tmp_path / "none")


def test_of_two_baselines_neither_is_chosen(tmp_path: Path) -> None:
    for system in ("one", "two"):
        write_result(tmp_path / "base", system=system, times_s=BASE_S)
    b = _judged(tmp_path / "b", times_s=BASE_S)

    with pytest.raises(UserError, match="found 2; name the folder of one result"):
        Baseline(tmp_path / "base").compared_with(b, 0.03)


def test_a_baseline_that_breaks_a_rule_is_refused(tmp_path: Path) -> None:
    base = write_result(tmp_path / "base", times_s=BASE_S)
    edit_manifest(base, 0, seed=5)
    seal(tmp_path / "base")
    b = _judged(tmp_path / "b", times_s=BASE_S)

    with pytest.raises(UserError, match="expected a baseline that complies with the rules"):
        Baseline(tmp_path / "base").compared_with(b, 0.03)


@pytest.mark.parametrize(
    ("factor", "how", "status"),
    [
        (1.0, {}, ExitCode.OK),
        (1.02, {}, ExitCode.OK),
        (1.2, {}, ExitCode.SLOWER),
        (1.0, {"missed": range(5)}, ExitCode.MISSED),
    ],
)
def test_compare_has_an_exit_status_of_its_own_for_slower(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    factor: float,
    how: dict[str, Any],
    status: ExitCode,
) -> None:
    a = write_result(tmp_path / "a", times_s=BASE_S)
    b = write_result(tmp_path / "b", times_s=[factor * each for each in BASE_S], **how)
    pair = (str(a.folder), str(b.folder))

    assert main(["compare", *pair]) == ExitCode.OK
    assert "baseline" not in capsys.readouterr().out
    assert main(["compare", *pair, "--fail-if-slower", "3%"]) == status
    assert "slower by more than 3 %" in capsys.readouterr().out
    assert main(["compare", *pair, "--fail-if-slower", "3%", "--json"]) == status
    assert json.loads(capsys.readouterr().out)["regression"]["limit"] == 0.03


def test_a_broken_result_passes_no_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = write_result(tmp_path / "a", times_s=BASE_S)
    b = write_result(tmp_path / "b", times_s=BASE_S)
    edit_manifest(b, 0, seed=5)
    seal(tmp_path / "b")

    assert main(["compare", str(a.folder), str(b.folder)]) == ExitCode.OK
    limit = ("--fail-if-slower", "3%")
    assert main(["compare", str(a.folder), str(b.folder), *limit]) == ExitCode.INVALID
    capsys.readouterr()


def test_a_wrong_limit_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "a", "b", "--fail-if-slower", "3"]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert said == "hybridperf: expected a percentage, found '3'; write it as 3%.\n"
