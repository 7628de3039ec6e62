from __future__ import annotations

import json
import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.log import keys
from hybridperf.log.package import read_result
from hybridperf.score.metrics import METRICS, row_of
from hybridperf.score.official import official_of
from hybridperf.score.run_score import Measurements, known_mean
from hybridperf.score.score import ResultScore, score_result
from hybridperf.score.validity import Judgement, Validity
from tests.packages import (
    BUBBLE,
    DAY_MS,
    EPOCHS,
    EXPOSED,
    VALID,
    change,
    edit_log,
    edit_manifest,
    place,
    shift,
    write_result,
)

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.score.official import Official


def _score(root: Path, **how: Any) -> ResultScore:
    return score_result(read_result(write_result(root, **how)))


def _official(root: Path, **how: Any) -> Official:
    return official_of(read_result(write_result(root, **how)), VALID)


def _row(root: Path, **how: Any) -> dict[str, object]:
    return row_of(_official(root, **how))


def test_a_result_says_what_was_run(tmp_path: Path) -> None:
    score = _score(tmp_path, plan="dp=2,pp=2,schedule=1f1b,microbatches=4")

    assert (score.org, score.system, score.benchmark) == ("acme", "laptop", "resnet/laptop")
    assert (score.division, score.plan) == ("closed", "dp=2,pp=2,schedule=1f1b,microbatches=4")
    assert (score.target, score.required_runs) == (0.98, 5)


def test_the_score_is_the_mean_from_run_start_to_run_stop(tmp_path: Path) -> None:
    score = _score(tmp_path, times_s=[19.0, 10.0, 12.0, 11.0, 13.0])

    assert [run.time_to_train_s for run in score.runs] == [19.0, 10.0, 12.0, 11.0, 13.0]
    assert all(run.counts for run in score.runs)
    assert score.time_s == score.mean_s == 13.0
    assert score.olympic_mean_s == 12.0
    assert score.interval_s is not None
    assert score.interval_s.low < 13.0 < score.interval_s.high


def test_samples_and_throughput_follow_from_epochs_and_time(tmp_path: Path) -> None:
    score = _score(tmp_path, times_s=[10.0] * 5)

    samples = EPOCHS * 1195 // 32 * 32
    assert score.samples_to_target == samples
    assert score.throughput_samples_per_s == pytest.approx(samples / 10)
    assert score.steady_samples_per_s == pytest.approx(samples / 10)
    assert score.bubble == pytest.approx(BUBBLE)
    assert score.exposed_communication == pytest.approx(EXPOSED)


def test_samples_follow_the_batch_of_the_run(tmp_path: Path) -> None:
    score = _score(tmp_path, overrides={"training.global_batch_size": 64})

    assert score.samples_to_target == EPOCHS * 1195 // 64 * 64


def test_steady_throughput_is_samples_over_time_of_all_blocks(tmp_path: Path) -> None:
    package = write_result(tmp_path, times_s=[10.0])
    edit_log(package, 0, lambda bodies: shift(bodies, place(bodies, keys.EVAL_STOP, 1), 5000))

    (run,) = score_result(read_result(package)).runs

    assert run.time_to_train_s == 15.0
    assert run.steady_samples_per_s == pytest.approx(298 * 32 / 10)  # without the evaluation


def test_steady_throughput_is_by_the_clock_whatever_a_trainer_tracks(tmp_path: Path) -> None:
    package = write_result(tmp_path, times_s=[10.0])
    (before,) = score_result(read_result(package)).runs

    def track(bodies: list[str]) -> None:
        for nth in range(2 * EPOCHS):
            change(bodies, keys.TRACKED_STATS, nth, value={"throughput": 1e9})

    edit_log(package, 0, track)
    (after,) = score_result(read_result(package)).runs

    assert after.steady_samples_per_s == before.steady_samples_per_s


def test_the_curve_has_a_point_for_each_evaluation(tmp_path: Path) -> None:
    (run,) = _score(tmp_path, times_s=[16.0]).runs

    assert [point.epoch for point in run.curve] == list(range(1, EPOCHS + 1))
    late_s = [point.time_s - 2.0 * epoch for epoch, point in enumerate(run.curve, start=1)]
    assert all(0 <= each < 1 for each in late_s[:3])  # the first three are, each by its own time
    assert late_s[3:] == [0.0] * (EPOCHS - 3)
    assert [point.samples for point in run.curve] == [
        epoch * 1195 // 32 * 32 for epoch in range(1, EPOCHS + 1)
    ]
    assert run.curve[-1].quality >= 0.98 > run.curve[-2].quality
    assert run.seed == 1000


def test_a_miss_makes_the_mean_a_lower_bound(tmp_path: Path) -> None:
    score = _score(tmp_path, times_s=[10.0, 1.0, 12.0, 11.0, 13.0], missed=[1])

    assert [run.completion for run in score.runs].count("missed") == 1
    assert score.runs[1].time_to_train_s == math.inf
    assert score.runs[1].outcome == "target_missed"
    assert score.runs[1].least_s == 13.0  # it ran for 1 s: stopping early does not help
    assert (score.missed, score.olympic_mean_s) == (1, 12.0)
    assert score.mean_s == pytest.approx(11.8)
    assert score.interval_s is not None
    assert 0 < score.interval_s.low < 11.8
    assert score.interval_s.high == math.inf
    official = _official(tmp_path / "row", times_s=[10.0, 1.0, 12.0, 11.0, 13.0], missed=[1])
    assert (row_of(official)["missed"], row_of(official)["interval_high_s"]) == (1, None)
    assert METRICS["mean_s"].text(official) == "11.80 s or more"


def test_a_result_that_did_not_converge_has_no_time(tmp_path: Path) -> None:
    result = read_result(write_result(tmp_path, times_s=[10.0] * 5, missed=[0, 1]))

    score = score_result(result, Validity(Judgement.MISSED, "2: 0, 1"))

    assert score.mean_s is None
    assert score.interval_s is None
    assert score.olympic_mean_s == math.inf
    assert score.missed == 2


def test_attempts_that_were_ended_are_shown_and_not_scored(tmp_path: Path) -> None:
    score = _score(tmp_path, times_s=[10.0, 1.0, 12.0, 11.0, 13.0, 14.0], ended=[1])

    assert [run.completion for run in score.runs][1] == "ended"
    assert score.runs[1].outcome == "interrupted"
    assert not score.runs[1].counts
    assert len(score.completed) == 5
    assert score.mean_s == 12.0


def test_without_run_stop_a_run_was_ended(tmp_path: Path) -> None:
    package = write_result(tmp_path, times_s=[10.0])
    edit_log(package, 0, lambda bodies: bodies.pop())
    edit_manifest(package, 0, outcome=None)

    (run,) = score_result(read_result(package)).runs

    assert (run.completion, run.outcome) == ("ended", "ended")
    assert run.throughput_samples_per_s == 0.0


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_fewer_than_five_runs_have_a_mean_and_no_interval(tmp_path: Path, count: int) -> None:
    score = _score(tmp_path, times_s=[10.0] * count)

    assert score.mean_s == 10.0
    assert score.interval_s is None
    assert score.samples_to_target == EPOCHS * 1195 // 32 * 32
    assert all(run.counts for run in score.runs)
    assert (score.olympic_mean_s is None) is (count < 3)


def test_a_result_without_runs_is_scored_as_nothing(tmp_path: Path) -> None:
    package = write_result(tmp_path, times_s=[])

    official = official_of(read_result(package), VALID)

    assert official.score.runs == ()
    assert row_of(official)["attempts"] == 0


def test_a_row_has_the_published_columns(tmp_path: Path) -> None:
    row = _row(tmp_path)

    assert list(row) == list(METRICS)
    assert row["mean_s"] == 12.0
    assert (row["runs"], row["required_runs"], row["attempts"]) == (5, 5, 5)


def test_more_runs_than_required_all_count_and_mlperfs_score_has_its_window(tmp_path: Path) -> None:
    # Windows of five: 5 6 8 9 10, then 6 8 9 10 30, then 8 9 10 30 40; means 23/3, 9, 49/3.
    package = write_result(tmp_path, times_s=[5.0, 6.0, 8.0, 9.0, 10.0, 30.0, 40.0])
    score = score_result(read_result(package))

    assert [run.in_window for run in score.runs] == [False, *[True] * 5, False]
    assert score.olympic_mean_s == 9.0
    assert len(score.completed) == 7
    assert all(run.counts for run in score.runs)
    assert score.mean_s == pytest.approx(108 / 7)
    assert official_of(read_result(package), VALID).dropped == []


def test_windows_follow_the_time_stamps_and_not_the_numbers(tmp_path: Path) -> None:
    package = write_result(tmp_path, times_s=[10.0, 11.0, 12.0, 13.0, 14.0, 50.0])
    days_ms = 6 * DAY_MS
    edit_log(package, 5, lambda bodies: shift(bodies, 0, -days_ms))  # the run of 50 s was the first

    score = score_result(read_result(package))

    # In order: 50 10 11 12 13 (mean 12) and 10 11 12 13 14 (mean 12): equal, so the first.
    assert [run.number for run in score.window] == [0, 1, 2, 3, 5]


def test_an_ended_attempt_is_in_no_window(tmp_path: Path) -> None:
    score = _score(tmp_path, times_s=[10.0, 11.0, 1.0, 12.0, 13.0, 14.0], ended=[2])

    assert [run.number for run in score.window] == [0, 1, 3, 4, 5]


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"times_s": [10.0]},
        {"times_s": []},
        {"missed": [0, 1]},
        {"missed": range(5)},
        {"ended": range(5)},
        {"times_s": [0.0] * 5},
        {"times_s": [0.0] * 5, "missed": [1]},
    ],
)
def test_a_row_is_safe_as_json(tmp_path: Path, how: dict[str, Any]) -> None:
    row = _row(tmp_path, **how)

    text = json.dumps(row, allow_nan=False)
    assert set(json.loads(text)) == set(METRICS)


def test_rates_of_loaders_are_samples_over_time_of_their_blocks(
    tmp_path: Path,
) -> None:
    def replace(bodies: list[str]) -> None:
        for nth, loader in ((0, 100.0), (2, 300.0)):
            rates = {"loader_samples_per_s": loader, "compute_samples_per_s": 50}
            change(bodies, keys.TRACKED_STATS, nth, value=rates)

    package = write_result(tmp_path, times_s=[10.0])
    edit_log(package, 0, replace)

    (run,) = score_result(read_result(package)).runs

    assert run.loader_samples_per_s == pytest.approx(150)
    assert run.compute_samples_per_s == pytest.approx(50)
    assert _score(tmp_path / "without").loader_samples_per_s is None


def test_real_tokens_count_at_the_rate_of_samples(tmp_path: Path) -> None:
    def replace(bodies: list[str]) -> None:
        for nth, tokens in ((0, 95_600), (2, 47_800)):  # in two epochs of 1,195 samples
            change(bodies, keys.TRACKED_STATS, nth, value={"real_tokens": tokens})

    package = write_result(tmp_path, times_s=[10.0])
    edit_log(package, 0, replace)

    (run,) = score_result(read_result(package)).runs

    assert run.steady_samples_per_s is not None
    per_sample = (95_600 + 47_800) / sum(point.samples for point in run.curve[1:2])
    assert run.real_tokens_per_s == pytest.approx(run.steady_samples_per_s * per_sample)
    assert _score(tmp_path / "without").real_tokens_per_s is None


@pytest.mark.parametrize(
    "value",
    [
        {"throughput": 1e-308, "bubble": 1e308, "exposed_communication": -1e308},
        {"throughput": 1e308},
        {"throughput": "fast", "bubble": None},
        {"throughput": -1, "bubble": []},
        ["throughput"],
        10**19,
        None,
    ],
)
def test_hostile_statistics_do_not_overflow(tmp_path: Path, value: object) -> None:
    def replace(bodies: list[str]) -> None:
        for nth in range(2 * EPOCHS):
            change(bodies, keys.TRACKED_STATS, nth, value=value)

    package = write_result(tmp_path)
    for number in range(5):
        edit_log(package, number, replace)

    official = official_of(read_result(package), VALID)

    samples_per_s = official.score.steady_samples_per_s
    assert (
        samples_per_s
        == score_result(read_result(write_result(tmp_path / "other"))).steady_samples_per_s
    )
    assert official.score.bubble is None
    assert "NaN" not in json.dumps(row_of(official), allow_nan=False)


@pytest.mark.parametrize("value", ["many", None, 0, -32, True, 10**19])
def test_hostile_batches_do_not_raise(tmp_path: Path, value: object) -> None:
    package = write_result(tmp_path)
    for number in range(5):
        edit_log(
            package, number, lambda bodies: change(bodies, keys.GLOBAL_BATCH_SIZE, value=value)
        )

    score = score_result(read_result(package))

    assert score.mean_s == 12.0
    assert score.samples_to_target is not None


def test_every_measurement_of_the_scored_runs_is_averaged(tmp_path: Path) -> None:
    score = score_result(read_result(write_result(tmp_path, times_s=[10, 11, 12, 13, 14])))

    counting = [run for run in score.runs if run.counts]
    assert len(counting) == 5
    for field in fields(Measurements):
        values = [getattr(run, field.name) for run in counting]
        assert getattr(score, field.name) == known_mean(values), field.name
        assert field.name in METRICS  # and shown
