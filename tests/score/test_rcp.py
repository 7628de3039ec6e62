from __future__ import annotations

import itertools
import json
import math
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridperf.errors import ExitCode, UserError
from hybridperf.log import keys
from hybridperf.log.log import Entry, Log
from hybridperf.log.package import find_packages, read_package, read_result
from hybridperf.score.convergence import samples_at
from hybridperf.score.metrics import row_of
from hybridperf.score.official import official_score
from hybridperf.score.ranking import standing_of
from hybridperf.score.rcp import (
    Point,
    RcpTest,
    Reference,
    compare_with_references,
    limit,
    points_of,
    prune,
    read_rcp_set,
    read_rcp_sets,
    reference_point,
)
from hybridperf.score.score import runs_of_result, score_result
from hybridperf.tasks import mlperf
from hybridperf.tasks.mlperf import MlperfBenchmark, mlperf_benchmark, official_tool
from hybridperf.tasks.registry import find_task
from tests.packages import VALID, write_result
from tests.score.made_up_round import log_lines, write_round
from tests.score.rounds import DATA, NEEDS_DATA, reference_points

if TYPE_CHECKING:
    from pathlib import Path

# MLPerf Training rules, appendix "RCP Examples": a benchmark of five runs a result.
RUNS = 5
RULES = RcpTest(RUNS, drops=1)
NEWEST = RcpTest(RUNS, drops=1, tool=official_tool())
BATCH_128 = Reference(128, (16, 14, 16, 17, 16, 16, 15, 16, 15, 16))
BATCH_256 = Reference(256, (20, 21, 21, 20, 22, 22, 21, 21, 20, 20))


@pytest.mark.parametrize(
    ("reference", "mean", "stdev", "lowest", "speedup"),
    [(BATCH_128, 15.75, 0.43, 15.21, 0.0353), (BATCH_256, 20.75, 0.66, 19.93, 0.0412)],
)
def test_the_worked_examples_of_the_rules(
    reference: Reference, mean: float, stdev: float, lowest: float, speedup: float
) -> None:
    point = reference_point(reference, RULES)

    assert point.mean == mean
    assert round(point.stdev, 2) == stdev
    assert round(limit(point, RULES), 2) == lowest
    assert round(point.mean / limit(point, RULES) - 1, 4) == speedup


@pytest.mark.parametrize(("reference", "lowest"), [(BATCH_128, 14.78), (BATCH_256, 19.82)])
def test_the_official_tool_is_more_lenient_than_the_rules(
    reference: Reference, lowest: float
) -> None:
    assert round(limit(reference_point(reference, NEWEST), NEWEST), 2) == lowest


@pytest.mark.parametrize(
    ("batch", "amounts", "passed", "how"),
    [
        (128, [15, 15, 15, 16, 16], True, "reference point at this batch size"),  # S1
        (256, [19, 19, 19, 20, 21], False, "reference point at this batch size"),  # S2
        (192, [17, 18, 18, 18, 20], True, "interpolated"),  # S3
        (512, [30, 30, 30, 30, 30], None, "no reference point at or above batch size 512"),  # S4
        (64, [15, 16, 16, 16, 16], True, "slower than the reference point of the smallest"),  # S5
        (64, [12, 13, 13, 13, 16], False, "supply one, or keep to the smallest"),  # S6
        (128, [15, 15, math.inf, 16, 16], True, "reference point at this batch size"),
        (128, [15, 15, math.inf, math.inf, 16], False, "more than one run missed"),
        (128, [15, 15], None, "takes 3 or more"),
    ],
)
def test_the_submitters_of_the_rules(
    batch: int, amounts: list[float], passed: bool | None, how: str
) -> None:
    verdict = compare_with_references([BATCH_256, BATCH_128], batch, amounts, RULES)

    assert verdict.passed is passed
    assert how in verdict.how


def test_the_interpolated_point_of_the_rules_has_as_many_runs_as_a_reference_needs() -> None:
    verdict = compare_with_references([BATCH_128, BATCH_256], 192, [17, 18, 18, 18, 20], RULES)

    assert verdict.reference_mean == 18.25
    assert verdict.limit is not None
    assert 18.25 / verdict.limit - 1 == pytest.approx(0.0368, abs=1e-4)
    assert verdict.factor == pytest.approx(18.25 / 18)


def test_slower_than_the_reference_is_not_sped_up() -> None:
    assert compare_with_references([BATCH_128], 128, [20] * 5, RULES).factor == 1.0


def _points(*means: float) -> list[Point]:
    return [Point(index, mean, 0.5, 8) for index, mean in enumerate(means, start=1)]


def _sizes(points: list[Point]) -> list[int]:
    return [point.batch_size for point in points]


def test_points_left_of_the_fastest_and_above_the_line_are_pruned() -> None:
    assert _sizes(prune(_points(9, 5, 8, 7, 12, 11), RULES)) == [2, 4, 6]


@NEEDS_DATA
def test_the_official_tool_keeps_points_above_the_envelope() -> None:
    bert, resnet = (
        {
            name: _sizes(prune([reference_point(each, test) for each in points], test))
            for name, test in (("rules", RULES), ("compat", NEWEST))
        }
        for points in (reference_points()["bert"], reference_points()["resnet"])
    )

    assert bert["compat"] == [448, 4608, 6144, 6912, 12288, 13056, 16384]
    assert bert["rules"] == [448, 4608, 12288, 13056, 16384]
    assert resnet["compat"] == resnet["rules"] == [1632, 3264, 32768, 49152, 67840]


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=12))
def test_the_envelope_is_convex_and_below_every_point(means: list[int]) -> None:
    points = _points(*map(float, means))
    kept = prune(points, RULES)

    slopes = [
        (high.mean - low.mean) / (high.batch_size - low.batch_size)
        for low, high in itertools.pairwise(kept)
    ]
    assert all(one <= other + 1e-9 for one, other in itertools.pairwise(slopes))
    assert kept[0].mean == min(means)
    assert kept[-1].batch_size == len(means)
    assert set(_sizes(kept)) <= set(_sizes(prune(points, NEWEST)))
    for low, high in itertools.pairwise(kept):
        for point in points[low.batch_size : high.batch_size - 1]:
            share = (point.batch_size - low.batch_size) / (high.batch_size - low.batch_size)
            assert point.mean >= low.mean + share * (high.mean - low.mean) - 1e-9


_GOOD: dict[str, Any] = {"BS": 4, "Epochs to converge": [3, 4, 5.5]}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[]", "JSON that is not an object"),
        ("{", "Expecting property name"),
        ('{"a": 1}', "which is no object"),
        (json.dumps({"a": _GOOD | {"BS": 0}}), "with BS = 0"),
        (json.dumps({"a": _GOOD | {"BS": True}}), "with BS = True"),
        (json.dumps({"a": _GOOD | {"BS": "4"}}), "with BS = '4'"),
        (json.dumps({"a": _GOOD | {"Epochs to converge": [1, 2]}}), "without 3 or more"),
        (json.dumps({"a": _GOOD | {"Epochs to converge": [1, 2, 0]}}), "without 3 or more"),
        (json.dumps({"a": _GOOD | {"Epochs to converge": [1, 2, "3"]}}), "without 3 or more"),
        (json.dumps({"a": _GOOD | {"samples to converge": [1, 2, 3]}}), "without 3 or more"),
        (json.dumps({"a": _GOOD, "b": _GOOD}), "several points of batch size 4"),
        ('{"a": {"BS": 4, "Epochs to converge": [1, 2, NaN]}}', "NaN"),
    ],
)
def test_a_wrong_reference_file_is_refused(tmp_path: Path, text: str, found: str) -> None:
    (tmp_path / "rcps_bert.json").write_text(text)

    with pytest.raises(UserError, match=r"name another --rcp-set") as refusal:
        read_rcp_set(tmp_path)

    assert refusal.value.exit_code == ExitCode.USAGE
    assert found in str(refusal.value)


def test_a_folder_without_reference_files_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(UserError, match=r"expected a folder of MLCommons' files"):
            read_rcp_set(folder)


def test_a_reference_file_is_known_by_its_benchmark(tmp_path: Path) -> None:
    (tmp_path / "rcps_bert.json").write_text(json.dumps({"a": _GOOD}))

    assert read_rcp_set(tmp_path) == {"bert": (Reference(4, (3, 4, 5.5)),)}


def test_our_own_result_is_held_to_its_tasks_reference_points(tmp_path: Path) -> None:
    result = read_result(write_result(tmp_path))

    official = official_score(result, score_result(result), VALID, None)

    # Eight epochs of 1195 samples, in whole batches, in every run.
    assert official.verdict.passed
    own = find_task("resnet/laptop").reference
    assert own is not None
    point = reference_point(Reference(32, own.samples_to_target), RULES)
    assert official.verdict.reference_mean == point.mean
    assert official.verdict.mean == 8 * 1195 // 32 * 32
    assert row_of(official)["official_minutes"] == official.olympic_minutes == 0.2


def test_our_own_result_at_a_larger_batch_has_no_reference_point(tmp_path: Path) -> None:
    package = write_result(tmp_path, overrides={"training.global_batch_size": 64})
    result = read_result(package)

    row = row_of(official_score(result, score_result(result), VALID, None))

    assert row["rcp_factor"] is row["official_minutes"] is None
    assert "no reference point at or above batch size 64" in str(row["rcp_reason"])


def test_what_is_known_of_a_benchmark_is_in_the_catalogue_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A benchmark that no Python file names is scored by what the catalogue says of it."""
    made_up = MlperfBenchmark(runs=7, drops=2, progress={"epoch_num": "samples"})
    known = {"made_up": made_up, "other": mlperf_benchmark("other")}
    monkeypatch.setattr(mlperf, "_catalogue", lambda _: known)
    log = Log("", [Entry(keys.EVAL_ACCURACY, 0, "POINT_IN_TIME", 0.7, {"epoch_num": 5000}, 1)])

    assert runs_of_result("made_up") == 7
    assert samples_at(log, "made_up", "epoch_num", log.entries[0]) == 5000
    assert samples_at(log, "unknown", "epoch_num", log.entries[0]) == 0


def test_more_runs_are_left_out_where_the_catalogue_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlperf, "_catalogue", lambda _: {"other": MlperfBenchmark(drops=2)})
    folder = tmp_path / "rcp"
    folder.mkdir()
    points = {"a": {"BS": 448, "Epochs to converge": [2e6, 2.1e6, 2.2e6, 2.3e6, 9e6]}}
    (folder / "rcps_bert.json").write_text(json.dumps(points))
    logs = [log_lines(100, samples=2_000_000 + run) for run in range(3)]
    missed = [log_lines(10, status="aborted") for _ in range(2)]
    write_round(tmp_path / "round", [*logs, *missed])
    (package,) = find_packages(tmp_path / "round")
    result = read_package(package)

    score = score_result(result)
    official = official_score(result, score, VALID, read_rcp_set(folder))

    assert [run.counts for run in score.runs] == [False, False, True, False, False]
    assert score.olympic_mean_s == 100
    assert score.interval_s is None  # of the one run that counts no spread is known
    assert [each["why"] for each in official.dropped] == [
        *("fastest", "fastest"),
        *("slowest: did not reach the target", "slowest: did not reach the target"),
    ]
    assert standing_of(official)[0] == "ranked"
    write_round(tmp_path / "other", [*logs, *missed[:1]])
    (package,) = find_packages(tmp_path / "other")
    few = official_score(read_package(package), score_result(read_package(package)), VALID, None)
    assert standing_of(few)[1] == "fewer than 5 runs"


def test_the_test_of_convergence_leaves_out_as_many_runs() -> None:
    reference = Reference(56, (*range(4), *(20, 21, 22, 23), *range(90, 94)))
    amounts = [1] * 4 + [math.inf] * 4 + [20] * 32

    rules, tool = RcpTest(40, 4), RcpTest(40, 4, tool=official_tool())
    point = reference_point(reference, rules)
    verdict = compare_with_references([reference], 56, amounts, rules)
    lenient = compare_with_references([reference], 56, amounts, tool)

    assert (point.mean, point.runs) == (21.5, 4)
    assert verdict.mean == 20
    assert verdict.limit == limit(point, rules)
    assert (rules.scored, tool.scored) == (32, 38)
    # The official tool takes two runs from a submission of 40, not eight.
    assert lenient.limit == limit(reference_point(reference, tool), tool)
    assert compare_with_references([reference], 56, [*amounts, math.inf], rules).how == (
        "more than 4 runs missed the target"
    )


@NEEDS_DATA
def test_four_runs_of_unet3d_are_left_out_at_either_end(tmp_path: Path) -> None:
    """Source: what the official tool of round v4.0 said of its unet3d results."""
    shutil.copy(DATA / "rcp/v4.0/rcps_unet3d.json", tmp_path)
    points = read_rcp_set(tmp_path)["unet3d"]
    test = RcpTest(40, mlperf_benchmark("unet3d").drops, tool=official_tool("4.0"))

    (point,) = (
        found
        for each in points
        if round((found := reference_point(each, test)).mean, 3) == 357404.444
    )

    assert limit(point, test) == pytest.approx(337127.57229, abs=1e-2)


@NEEDS_DATA
def test_reference_points_of_every_round_are_read() -> None:
    sets = read_rcp_sets(DATA / "rcp")

    assert len(sets) == 12
    assert len(sets["5.1"]) == 8
    assert sets["4.0"]["llama2_70b_lora"]  # counted in samples, by another key


def test_reference_points_are_those_of_the_round(tmp_path: Path) -> None:
    for folder, size in (("v2.1", 4), ("training_3.0.0", 8), (".", 16)):
        (tmp_path / folder).mkdir(exist_ok=True)
        record = {"BS": size, "samples to converge": [3, 4, 5]}
        (tmp_path / folder / "rcps_bert.json").write_text(json.dumps({"a": record}))

    sets = read_rcp_sets(tmp_path)

    sizes = {
        edition: points_of(sets, edition)["bert"][0].batch_size
        for edition in ("2.1", "3.0", "4.0", "")
    }
    assert sizes == {"2.1": 4, "3.0": 8, "4.0": 16, "": 16}


@pytest.mark.parametrize(
    ("edition", "kept"),
    [("1.1", [1, 2, 3, 4]), ("2.0", [1, 2, 4]), ("3.1", [1, 2, 4]), ("4.0", [2, 4])],
)
def test_tools_prune_by_what_their_round_did(edition: str, kept: list[int]) -> None:
    """Point 1 has the lowest limit, for it varies most, and point 2 the lowest mean."""
    points = [
        Point(size, mean, stdev, 8)
        for size, mean, stdev in ((1, 6, 4), (2, 5, 0.1), (3, 9, 0.1), (4, 8, 0.1))
    ]

    assert _sizes(prune(points, RcpTest(RUNS, 1, tool=official_tool(edition)))) == kept


def test_one_evaluation_of_grace_is_a_fact_of_the_benchmark() -> None:
    reference = Reference(1152, (322_560.0,) * 6)
    grace = mlperf_benchmark("llama31_405b", "5.0").grace

    one_early = [276_480.0] * 3
    assert grace == 46_080
    assert compare_with_references([reference], 1152, one_early, RcpTest(3, 1, grace)).passed
    assert compare_with_references([reference], 1152, one_early, RcpTest(3, 1)).passed is False


def test_above_the_largest_batch_the_rules_ask_for_a_point_and_the_tool_fails_the_result() -> None:
    amounts = [30.0] * 5

    assert compare_with_references([BATCH_256], 512, amounts, RULES).passed is None
    verdict = compare_with_references([BATCH_256], 512, amounts, NEWEST)
    assert (verdict.passed, verdict.factor) == (False, None)
    assert "one must be supplied" in verdict.reason
