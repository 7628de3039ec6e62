from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.log.package import find_packages, read_package, read_result
from hybridperf.score.compare import Comparison, compare
from hybridperf.score.official import Official, official_of, official_score
from hybridperf.score.score import score_result
from hybridperf.score.validity import Judgement, Validity
from tests.packages import BUBBLE, EPOCHS, EXPOSED, VALID, write_result
from tests.score.made_up_round import log_lines, write_round

if TYPE_CHECKING:
    from pathlib import Path

SLOW_S = [20.0, 21.0, 22.0, 23.0, 24.0]


def _official(root: Path, **how: Any) -> Official:
    result = read_result(write_result(root, **how))
    return official_score(result, score_result(result), VALID, None)


def _compare(root: Path, a: dict[str, Any], b: dict[str, Any]) -> Comparison:
    return compare(_official(root / "a", **a), _official(root / "b", **b))


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ({}, {}, "tie"),
        ({}, {"times_s": SLOW_S}, "slower"),
        ({"times_s": SLOW_S}, {}, "faster"),
        ({}, {"times_s": [10.5, 11.0, 12.5, 13.0, 14.5]}, "tie"),
        ({}, {"times_s": [10.0]}, "undecided"),
        ({}, {"times_s": []}, "undecided"),
        ({"times_s": []}, {"times_s": []}, "undecided"),
        ({}, {"missed": range(5)}, "undecided"),
        ({"times_s": [10.0] * 5}, {"times_s": [12.0] * 5}, "undecided"),
        ({}, {"times_s": [0.0] * 5}, "faster"),
    ],
)
def test_the_verdict_says_what_b_is(
    tmp_path: Path, a: dict[str, Any], b: dict[str, Any], verdict: str
) -> None:
    comparison = _compare(tmp_path, a, b)

    assert comparison.decision.verdict == verdict
    text = json.dumps(comparison.as_json(), allow_nan=False)
    assert json.loads(text)["verdict"] == verdict


def test_the_difference_is_of_the_means_with_the_interval_of_their_ratio(tmp_path: Path) -> None:
    answer = _compare(tmp_path, {}, {"times_s": SLOW_S}).as_json()

    assert answer["difference_s"] == 10
    assert answer["ratio"] == 22 / 12
    assert 1 < answer["ratio_low"] < 22 / 12 < answer["ratio_high"]  # type: ignore[operator]
    assert answer["t"] == pytest.approx(10)
    assert answer["degrees_of_freedom"] == pytest.approx(8)
    assert answer["p_value"] == pytest.approx(8.488e-6, rel=1e-3)


def test_the_reasons_multiply_to_the_ratio(tmp_path: Path) -> None:
    comparison = _compare(
        tmp_path, {}, {"times_s": SLOW_S, "overrides": {"training.global_batch_size": 64}}
    )

    why = comparison.decision.why
    assert why is not None
    assert why.samples_ratio == pytest.approx(EPOCHS * 1195 // 64 * 64 / (EPOCHS * 1195 // 32 * 32))
    assert why.samples_ratio * why.seconds_per_sample_ratio == pytest.approx(
        comparison.decision.ratio
    )


def test_runs_that_missed_count_at_least_as_long_as_they_ran(tmp_path: Path) -> None:
    comparison = _compare(tmp_path, {"missed": [2]}, {"division": "open"})

    side = comparison.as_json()["a"]
    assert side["times_s"] == [10, 11, 14, 13, 14]  # type: ignore[index]  # it ran for 12 s only
    assert side["mean_s"] == pytest.approx(12.4)  # type: ignore[index]
    assert comparison.notes == (
        "A: 1 of 5 runs missed the target: the mean is a lower bound",
        "other division: closed and open",
    )


def test_a_plan_that_computes_something_else_is_told(tmp_path: Path) -> None:
    plan = "pp=2,links=int8"
    comparison = _compare(tmp_path, {}, {"plan": plan, "division": "open"})

    assert comparison.notes[:2] == (
        "B: computes something else than one process: links=int8",
        "other division: closed and open",
    )


def test_idle_is_told_where_it_is_known(tmp_path: Path) -> None:
    assert _official(tmp_path).idle_share == pytest.approx(BUBBLE + EXPOSED)


def _of_round(
    root: Path,
    edition: str,
    system: dict[str, Any] | None = None,
    validity: Validity = VALID,
) -> Official:
    facts = {"division": "closed", "number_of_nodes": "1"} | (system or {})
    logs = [log_lines(100.0 + 10 * number) for number in range(5)]
    folder = write_round(root / f"training_results_v{edition}", logs, facts=facts)
    (package,) = find_packages(folder)
    return official_of(read_package(package), validity)


def test_there_is_no_scaling_efficiency_from_one_accelerator_to_another(tmp_path: Path) -> None:
    def system(count: int, name: str) -> dict[str, Any]:
        return {"accelerators_per_node": count, "accelerator_model_name": name}

    a100 = _of_round(tmp_path, "2.0", system(8, "NVIDIA A100-SXM4-80GB"))
    h100 = _of_round(tmp_path, "2.1", system(16, "NVIDIA H100-SXM5-80GB"))
    more = _of_round(tmp_path, "3.0", system(16, "NVIDIA A100-SXM4-80GB (400W)"))

    other, same = compare(a100, h100), compare(a100, more)

    assert other.efficiency is None
    names = "NVIDIA A100 SXM 80 GB and NVIDIA H100 SXM"
    assert other.notes[:2] == (
        "other round of MLPerf: v2.0 and v2.1",
        f"no scaling efficiency between accelerators that differ: {names}",
    )
    assert same.efficiency is not None
    assert same.efficiency.by_time_to_train == pytest.approx(0.5)


def test_an_invalid_log_is_not_said_to_have_missed_the_target(tmp_path: Path) -> None:
    errors = {
        1: "mlperf.keys: expected eval_samples exactly once, found none",
        3: "mlperf.target: expected eval_accuracy at least 0.72 once at least, found 0.5",
    }
    validity = Validity(Judgement.VALID, "", "mlperf-training-2.0.0", 5, errors)
    broken = _of_round(tmp_path, "2.0", validity=validity)

    assert compare(broken, broken).notes[:2] == (
        "A: 1 of 5 runs missed the target: the mean is a lower bound",
        f"A: 1 of 5 runs have an invalid log: {errors[1]}",
    )


def test_all_runs_of_ours_are_compared_and_the_window_of_mlperfs(tmp_path: Path) -> None:
    times_s = [1, 10, 11, 12, 13, 14, 99]
    comparison = _compare(tmp_path, {"times_s": times_s}, {})

    assert comparison.as_json()["a"]["times_s"] == times_s  # type: ignore[index]
    assert comparison.notes == ()
    window = [100.0, *[110.0] * 8, 200.0]
    logs = [log_lines(time_s) for time_s in [1.0, *window, 1000.0]]
    (package,) = find_packages(write_round(tmp_path / "round", logs))
    published = official_of(read_package(package), VALID)
    compared = compare(published, published)
    assert compared.as_json()["a"]["times_s"] == window  # type: ignore[index]
    assert compared.notes[0] == "A: 10 of 12 runs make MLPerf's score: the median window"
