"""Every score and RCP outcome that the official tool of a round computed comes out."""

from __future__ import annotations

import math
import tomllib
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hybridperf.log.package import find_packages, read_package
from hybridperf.report.judgement import judged_entries, judged_scores
from hybridperf.score.metrics import row_of
from hybridperf.score.official import Official, official_of, official_score
from hybridperf.score.rcp import convergence_of, points_of
from hybridperf.tasks.mlperf import mlperf_benchmark
from tests.rules.mlperf.published_rounds import TIERS
from tests.score.ten_rounds import (
    NEEDS_ROUNDS,
    Name,
    official_validity,
    reference_sets,
    rows,
    unpack_rounds,
)

if TYPE_CHECKING:
    from hybridperf.score.rcp import RcpVerdict

pytestmark = NEEDS_ROUNDS
# The tool searches the limit by bisection; ours is exact.
BISECTION = 2e-4


class Scored:
    """What we say of one result: as published, and the RCP test by either count."""

    def __init__(
        self,
        published: Official,
        verdicts: dict[bool, RcpVerdict],
        by_tool: RcpVerdict,
        by_rules: RcpVerdict,
    ) -> None:
        self.published, self.verdicts = published, verdicts
        self.by_tool, self.by_rules = by_tool, by_rules


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_rounds(tmp_path_factory.getbasetemp())


@cache
def _scored(rounds: Path, edition: str) -> dict[Name, Scored]:
    """Read and score a round once, without keeping its logs."""
    found = {}
    points = points_of(reference_sets(), edition)
    for package in find_packages(rounds / f"training_results_v{edition}"):
        result = read_package(package)
        name = Name(package.org, package.system, package.benchmark)
        files = [run.log.path.rpartition("/")[2] for run in result.runs]
        validity = official_validity(edition, name, files)
        published = official_of(result, validity)
        score, division = published.score, published.division
        total = mlperf_benchmark(score.benchmark, edition).total
        # The official tool counts as its flag says; we choose by what the logs hold.
        by_tool = official_score(result, score, validity, points, "compat").verdict
        verdicts = {
            flag: convergence_of(result, score, division, key, points, "compat")
            if total
            else by_tool
            for flag, key in ((False, "epoch_num"), (True, total))
        }
        by_rules = official_score(result, score, validity, points, "rules").verdict
        found[name] = Scored(published, verdicts, by_tool, by_rules)
    return found


@cache
def _exceptions() -> dict[tuple[str, str], dict[str, Any]]:
    text = Path(__file__).with_name("oracle_exceptions.toml").read_text(encoding="utf-8")
    return {(each["round"], each["result"]): each for each in tomllib.loads(text)["row"]}


def _same(found: object, stated: str) -> bool:
    if not stated:
        return found is None
    return isinstance(found, float | int) and math.isclose(found, float(stated), rel_tol=1e-9)


def _score_differences(row: dict[str, str], scored: Scored) -> list[str]:
    found = row_of(scored.published)
    columns = ("olympic_minutes", "rcp_factor", "official_minutes")
    wrong = [column for column in columns if not _same(found[column], row[column])]
    return wrong + ["runs"] * (str(found["runs"]) != row["runs"])


def _rcp_differences(row: dict[str, str], scored: Scored) -> list[str]:
    found = scored.verdicts[row["train_samples"] == "True"]
    near = found.limit is not None and bool(row["min_mean"])
    agree = {
        "result": str(found.passed) == row["result"],
        "mean": not row["subm_mean"] or _same(found.mean, row["subm_mean"]),
        "reference": _same(found.reference_mean, row["rcp_mean"]),
        "factor": not row["norm"] or _same(found.factor, row["norm"]),
        "limit": abs((found.limit or 0) - float(row["min_mean"])) < BISECTION
        if near
        else found.limit is None and not row["min_mean"],
    }
    return [name for name, same in agree.items() if not same]


def _compared(rounds: Path, edition: str, table: str) -> dict[Name, list[str]]:
    """Return the columns that differ, by result."""
    scored, differing = _scored(rounds, edition), dict[Name, list[str]]()
    for row in rows(f"v{edition}_{table}.csv"):
        if table == "scores":
            name = Name(row["submitter"], row["system"], row["benchmark"])
        else:
            org, _, system, benchmark = row["dir"].split("/")
            name = Name(org, system, benchmark)
        if name in scored:
            of_row = _score_differences if table == "scores" else _rcp_differences
            differing.setdefault(name, []).extend(of_row(row, scored[name]))
    return differing


@pytest.mark.parametrize("edition", TIERS)
@pytest.mark.parametrize(("table", "least"), [("scores", 12), ("rcp", 9)])
def test_what_the_official_tool_computed_comes_out(
    rounds: Path, edition: str, table: str, least: int
) -> None:
    differing = _compared(rounds, edition, table)

    assert len(differing) >= least
    wrong = {name: columns for name, columns in differing.items() if columns}
    assert {name for name in wrong if (edition, "/".join(name)) not in _exceptions()} == set(), (
        wrong
    )


@pytest.mark.parametrize("edition", TIERS)
def test_by_our_own_verdicts_the_same_results_have_a_score(rounds: Path, edition: str) -> None:
    """Judging and scoring in one pass say what the official tools of the round say."""
    by_name = {
        Name(row["submitter"], row["system"], row["benchmark"]): row
        for row in rows(f"v{edition}_scores.csv")
    }
    wrong, seen = list[object](), 0
    packages = find_packages(rounds / f"training_results_v{edition}")
    for package, found in zip(packages, judged_scores(packages), strict=True):
        row = by_name[Name(package.org, package.system, package.benchmark)]
        valid = len(found.score.runs) - len(found.validity.errors or ())
        if not _same(found.minutes, row["official_minutes"]):
            wrong.append((package.name, found.minutes, row["official_minutes"]))
        if found.validity.ruleset != f"mlperf-training-{edition}.0" or valid != int(
            row["valid_runs"]
        ):
            wrong.append((package.name, found.validity.words, row["valid_runs"]))
        seen += 1

    assert wrong == []
    assert seen >= 12


def test_what_is_kept_of_a_log_is_enough_for_its_score(rounds: Path) -> None:
    (package, *_) = find_packages(rounds / "training_results_v4.0")
    (entry,) = judged_entries([package])
    whole = official_of(read_package(package), entry.official.validity)

    assert row_of(entry.official) == row_of(whole)
    assert sum(len(run.log.entries) for run in entry.result.runs) < 5_000


@pytest.mark.exhaustive
def test_every_exception_is_one(rounds: Path) -> None:
    for edition, result in _exceptions():
        name = Name(*result.split("/"))
        tables = (_compared(rounds, edition, table) for table in ("scores", "rcp"))
        columns = [column for table in tables for column in table.get(name, ["not at hand"])]
        assert columns, f"v{edition} {result} is reproduced: delete its row"


def _on_the_hull(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return the lower convex hull from the fastest point on, by comparing all with all."""
    fastest = min(points, key=lambda point: (point[1], point[0]))
    kept = sorted(point for point in points if point[0] >= fastest[0])
    return [
        (size, mean)
        for size, mean in kept
        if not any(
            low[0] < size < high[0]
            and mean > low[1] + (high[1] - low[1]) * (size - low[0]) / (high[0] - low[0])
            for low in kept
            for high in kept
        )
    ]


@pytest.mark.parametrize("edition", TIERS)
def test_by_the_rules_a_result_is_held_to_the_hull_of_the_points(
    rounds: Path, edition: str
) -> None:
    tested = 0
    for name, each in _scored(rounds, edition).items():
        verdict, batch = each.by_rules, each.published.batch_size
        if verdict.reference_mean is None or batch is None:
            continue
        facts = mlperf_benchmark(name.benchmark, edition)
        points = [
            (point.batch_size, fmean(sorted(point.amounts)[facts.drops : -facts.drops]))
            for point in points_of(reference_sets(), edition)[name.benchmark]
        ]
        hull = _on_the_hull(points)
        expected = np.interp(batch, [size for size, _ in hull], [mean for _, mean in hull])
        assert verdict.reference_mean == pytest.approx(expected, rel=1e-12), name
        assert verdict.limit is not None
        assert verdict.mean is not None
        assert verdict.limit <= verdict.reference_mean
        assert verdict.passed is (verdict.mean >= verdict.limit)
        if verdict.passed:
            assert verdict.factor == max(1.0, verdict.reference_mean / verdict.mean)
        tested += 1

    assert tested >= 5
