"""MetricEfficiency from hand-computed cases and from what MLPerf published."""

from __future__ import annotations

import math
from statistics import fmean
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.errors import ExitCode, UserError
from hybridperf.log.log import Entry, Log
from hybridperf.log.package import find_packages, read_package
from hybridperf.score import scaling
from hybridperf.score.scaling import (
    SPEED_METRICS,
    DevicesInUse,
    Split,
    devices_in_use,
    rank_seconds,
    scale,
    side_of,
)
from hybridperf.score.statistics import estimate, ratio_interval
from hybridperf.score.validity import Judgement, Validity
from tests.packages import EPOCHS, edit_log, place, write_result
from tests.scaling_results import BASE_TIMES_S, TIMES_S, on_cores, scaling_of, write_on, write_pair
from tests.score.made_up_round import line, log_lines, write_round
from tests.score.rounds import NEEDS_DATA

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.score.scaling import MetricEfficiency, Scaled, Side

SAMPLES = EPOCHS * 1195 // 32 * 32  #: of a made-up run of ours


def _by_metric(scaled: Scaled) -> dict[str, MetricEfficiency]:
    return {each.metric: each for each in scaled.efficiencies}


def _shown(scaled: Scaled) -> list[str]:
    return ["-" if e.value is None else f"{e.value:.1%}" for e in scaled.efficiencies]


def _round(root: Path, system: str, accelerators: int, logs: list[list[str]]) -> Side:
    facts = {"number_of_nodes": 1, "accelerators_per_node": accelerators, "framework": "F 1"}
    folder = write_round(root, logs, system=system, facts=facts)
    return side_of(read_package(find_packages(folder)[0]))


def test_each_metric_by_hand(tmp_path: Path) -> None:
    (scaled,) = scaling_of(*write_pair(tmp_path)).results

    assert scaled.kind == "strong"
    assert (scaled.base.devices.used, scaled.side.devices.used) == (1, 2)
    by = _by_metric(scaled)
    assert [each.metric for each in scaled.efficiencies] == list(SPEED_METRICS)
    assert by["time_to_train"].value == pytest.approx(12 / (2 * 8))
    # Evaluations of made-up runs take no time.
    base_rate, rate = (fmean(SAMPLES / each for each in times) for times in (BASE_TIMES_S, TIMES_S))
    assert by["end_to_end_throughput"].value == pytest.approx(rate / (2 * base_rate))
    assert by["steady_throughput"].value == pytest.approx(rate / (2 * base_rate))
    assert all(each.rated and not each.why for each in scaled.efficiencies)
    assert scaled.notes == ()


def test_the_interval_is_of_the_ratio_of_means(tmp_path: Path) -> None:
    base = write_on(tmp_path, 1, times_s=[12.0, 12.5, 13.0])
    other = write_on(tmp_path, 2, times_s=[6.0, 8.0, 10.0])

    by = _by_metric(scaling_of(base, other).results[0])

    times = estimate([6.0, 8.0, 10.0]), estimate([12.0, 12.5, 13.0])
    expected, interval = ratio_interval(*times), by["time_to_train"].interval
    assert expected is not None
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((expected.low / 2, expected.high / 2))


@pytest.mark.parametrize(
    ("times_s", "value"),
    [([0.0] * 5, None), ([0, 0, 0, 0, 5.0], 1 / 14), ([0, 0, 0, 1.0, 2.0], 0.6 / 14)],
)
def test_runs_that_take_no_time_are_no_division_by_zero(
    tmp_path: Path, times_s: list[float], value: float | None
) -> None:
    base = write_on(tmp_path, 1, times_s=times_s)
    other = write_on(tmp_path, 2, times_s=[5.0, 6.0, 7.0, 8.0, 9.0])

    by_time = _by_metric(scaling_of(base, other).results[0])["time_to_train"]

    assert by_time.value == (None if value is None else pytest.approx(value))
    assert by_time.interval is None or by_time.interval.low == 0


def test_a_base_that_may_miss_leaves_the_interval_open_above(tmp_path: Path) -> None:
    base = write_on(tmp_path, 1, times_s=[12.0] * 5, missed=[2])
    other = write_on(tmp_path, 2, times_s=[7.9, 8.0, 8.0, 8.0, 8.1])

    by = _by_metric(scaling_of(base, other).results[0])

    interval = by["time_to_train"].interval
    assert interval is not None
    assert interval.low == pytest.approx(0.75, rel=0.02)
    assert math.isinf(interval.high)
    assert by["time_to_train"].ends == (interval.low, None)


def test_two_misses_make_no_time_to_train_and_the_throughput_stays(tmp_path: Path) -> None:
    base = write_on(tmp_path, 1, times_s=[12.0] * 5)
    other = write_on(tmp_path, 2, times_s=[8.0] * 5, missed=[1, 2])

    missed = side_of(read_package(other), Validity(Judgement.MISSED))
    (scaled,) = scale([side_of(read_package(base)), missed]).results

    by = _by_metric(scaled)
    assert (by["time_to_train"].value, by["time_to_train"].standing) == (None, "unknown")
    assert by["time_to_train"].why == "the logs of acme on-2 do not record it"
    assert by["steady_throughput"].rated
    assert scaled.split is None


def test_the_split_multiplies_and_adds_up_exactly(tmp_path: Path) -> None:
    (scaled,) = scaling_of(*write_pair(tmp_path)).results

    split = scaled.split
    assert split is not None
    assert split.samples == 1.0
    assert split.pace == pytest.approx(0.75)
    assert split.total == pytest.approx(scaled.efficiencies[0].value)
    assert dict(split.losses) == {"evaluation": 0.0, "training": pytest.approx(0.25)}
    assert 1 - math.fsum(loss for _, loss in split.losses) == pytest.approx(split.pace)


def _stage(stage: int, waiting: float, compute: float, exposed: float) -> dict[str, float]:
    return {
        "stage": stage,
        "waiting_s": waiting,
        "input_s": 0.5,
        "compute_s": compute,
        "exposed_communication_s": exposed,
        "optimizer_s": 0.25,
    }


def _log(*stages: object) -> Log:
    entries = [
        Entry("tracked_stats", 0, "", {"stages": list(stages)}, {}, 1),
        Entry("eval_start", 6_000, "", None, {}, 2),
        Entry("eval_stop", 7_000, "", None, {}, 3),
    ]
    return Log("made up", entries)


def test_idle_time_is_imbalance_as_far_as_less_was_computed() -> None:
    pipeline = _log(_stage(0, 1.0, 4.0, 0.0), _stage(1, 2.5, 2.5, 0.0))

    assert rank_seconds(pipeline, 2, 8.0) == {
        "computation": 7.0,  # 4 + 2.5, and twice 0.25 of the optimiser
        "exposed-communication": 0.0,
        "bubble": 2.0,  # 1, and what is left of 2.5
        "imbalance": 1.5,
        "input": 1.0,
        "evaluation": 2.0,
        "rest": 2.5,  # 16 rank-seconds in all
    }


def test_without_a_pipeline_there_is_no_bubble() -> None:
    replicas = _log(_stage(0, 0.25, 3.0, 0.5), _stage(0, 0.25, 2.0, 1.5))

    assert rank_seconds(replicas, 2, 7.0) == {
        "computation": 5.5,
        "exposed-communication": 1.0,
        "bubble": 0.0,
        "imbalance": 1.0,
        "input": 1.0,
        "evaluation": 2.0,
        "rest": 3.5,  # the quarters that each step took beside, too
    }


@pytest.mark.parametrize(
    "stages",
    [
        (),
        (_stage(0, 1.0, 1.0, 1.0),),
        (_stage(0, 1.0, 1.0, 1.0), {"stage": 1}),
        (_stage(0, 1.0, 1.0, 1.0), "stage"),
        (_stage(0, 1.0, 1.0, 1.0), _stage(0, math.inf, 1.0, 1.0)),
    ],
    ids=["none", "one", "lacking", "text", "infinite"],
)
def test_a_log_that_does_not_tell_all_of_every_rank_tells_nothing(stages: tuple[Any, ...]) -> None:
    assert rank_seconds(_log(*stages), 2, 8.0) is None
    assert rank_seconds(Log("empty"), 2, 8.0) is None


def test_ranks_that_share_a_core_are_not_rated(tmp_path: Path) -> None:
    base = write_on(tmp_path, 1)
    crowded = on_cores(write_result(tmp_path, plan="dp=4", system="crowded", times_s=TIMES_S), 2)

    (scaled,) = scaling_of(base, crowded).results

    assert {each.standing for each in scaled.efficiencies} == {"oversubscribed"}
    assert {each.why for each in scaled.efficiencies} == {"4 ranks share 2 cores"}
    assert scaled.rated == {}


@pytest.mark.parametrize(
    ("plan", "description", "used"),
    [
        (
            "dp=1",
            {"number_of_nodes": 1, "host_processor_core_count": "2"},
            DevicesInUse(2, 2, "cores"),
        ),
        (
            "dp=2",
            {"number_of_nodes": 1, "host_processor_core_count": "2"},
            DevicesInUse(2, 2, "cores"),
        ),
        (
            "dp=2",
            {"number_of_nodes": 1, "host_processor_core_count": "5"},
            DevicesInUse(4, 5, "cores"),
        ),
        (
            "dp=4",
            {"number_of_nodes": 1, "host_processor_core_count": "2"},
            DevicesInUse(4, 2, "cores"),
        ),
        (
            "dp=4",
            {"number_of_nodes": 1, "accelerators_per_node": "8"},
            DevicesInUse(4, 8, "accelerators"),
        ),
        (
            "",
            {"number_of_nodes": 8, "accelerators_per_node": "8"},
            DevicesInUse(64, 64, "accelerators"),
        ),
        (
            "dp=2",
            {"number_of_nodes": "2", "hybridperf": {"processor": {"usable_cores": 3}}},
            DevicesInUse(6, 6, "cores"),
        ),
        (
            "",
            {"number_of_nodes": 1, "host_processor_core_count": 28},
            DevicesInUse(28, 28, "cores"),
        ),
        ("nonsense", {"number_of_nodes": 1, "accelerators_per_node": "8"}, None),
        ("dp=2", {}, None),
        ("dp=2", None, None),
    ],
)
def test_devices_are_what_ranks_and_their_threads_take(
    plan: str, description: dict[str, object] | None, used: DevicesInUse | None
) -> None:
    assert devices_in_use(plan, description) == used


def test_above_100_percent_is_rated_where_one_gain_explains_it(tmp_path: Path) -> None:
    base = write_on(tmp_path, 1, times_s=[12.0] * 5)
    other = write_on(tmp_path, 2, times_s=[4.0] * 5)

    (scaled,) = scaling_of(base, other).results

    by_time = _by_metric(scaled)["time_to_train"]
    assert by_time.value == pytest.approx(1.5)
    assert (by_time.standing, by_time.why) == ("rated", "super-linear by training")
    assert scaled.causes == ["training"]


@pytest.mark.parametrize(
    ("losses", "why"),
    [
        ((), "the split shows no gain"),
        (
            (("input", -0.25), ("bubble", -0.25)),
            "the split shows gains by input, bubble, none of which explains it",
        ),
    ],
)
def test_above_100_percent_that_no_gain_explains_is_not_rated(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    losses: tuple[tuple[str, float], ...],
    why: str,
) -> None:
    base = write_on(tmp_path, 1, times_s=[12.0] * 5)
    other = write_on(tmp_path, 2, times_s=[4.0] * 5)
    monkeypatch.setattr(scaling, "_split", lambda *_: Split(1.0, 1.5, losses))

    (scaled,) = scaling_of(base, other).results

    by_time = _by_metric(scaled)["time_to_train"]
    assert (by_time.standing, by_time.why) == ("super-linear", why)
    assert (scaled.rated, scaled.causes) == ({}, [])


def test_fewer_samples_explain_a_time_to_train_and_no_throughput(tmp_path: Path) -> None:
    sides = [
        _round(tmp_path / name, name, count, [log_lines(time_s, samples=samples)] * 10)
        for name, count, time_s, samples in (
            ("few", 1, 1000.0, 3_000_000),
            ("many", 2, 400.0, 2_000_000),
        )
    ]

    (scaled,) = scale(sides).results

    assert scaled.split is not None
    assert scaled.split.samples == pytest.approx(1.5)
    assert scaled.split.pace == pytest.approx(1000 / 3 / (2 * 400 / 2))
    by = _by_metric(scaled)
    assert (by["time_to_train"].value, by["time_to_train"].why) == (1.25, "super-linear by samples")
    assert by["end_to_end_throughput"].value == pytest.approx(scaled.split.pace)


@pytest.mark.parametrize(
    ("batch", "kind"), [(448, "strong"), (896, "weak"), (512, "neither"), (None, "unknown")]
)
def test_strong_weak_and_neither_are_told_apart(
    tmp_path: Path, batch: int | None, kind: str
) -> None:
    base = _round(tmp_path / "one", "one", 8, [log_lines(1000.0)] * 10)
    lines = [each for each in log_lines(600.0) if "global_batch_size" not in each]
    lines += [] if batch is None else [line("global_batch_size", batch)]
    other = _round(tmp_path / "two", "two", 16, [lines] * 10)

    (scaled,) = scale([other, base]).results  # the base is the one on fewest devices

    assert scaled.kind == kind
    assert scaled.base is base
    assert len(scaled.notes) == (kind == "neither")
    for asked in ("strong", "weak"):
        if asked != kind:
            with pytest.raises(UserError, match=f"as --{asked} asks for"):
                scale([base, other], kind=asked)


def test_steady_throughput_of_a_round_is_from_evaluation_to_evaluation(tmp_path: Path) -> None:
    def lines(first_s: float, epoch: int) -> list[str]:
        times = [first_s, first_s + 100, first_s + 200]
        return [
            line("submission_benchmark", "bert"),
            line("run_start"),
            *(line("eval_accuracy", 0.5 + t / 1e4, t, epoch_num=epoch * n or 1)
              for n, t in enumerate(times, 1)),
            line("train_samples", 1_500_000, times[-1]),
            line("run_stop", None, times[-1], status="success"),
        ]  # fmt: skip

    counted = _round(tmp_path / "counted", "counted", 8, [lines(300.0, 500_000)] * 3)
    constant = _round(tmp_path / "constant", "constant", 8, [lines(300.0, 0)] * 3)

    assert {run.steady_samples_per_s for run in counted.runs} == {1_000_000 / 200}
    assert {run.steady_samples_per_s for run in constant.runs} == {1_000_000 / 200}
    assert counted.runs[0].throughput_samples_per_s == 1_500_000 / 500
    assert counted.breakdowns[0] == {"steady-training": 2400.0, "start-up": 1600.0}


def test_what_makes_no_scaling_is_refused(tmp_path: Path) -> None:
    base = _round(tmp_path / "one", "one", 8, [log_lines(1000.0)] * 10)
    equal = _round(tmp_path / "two", "two", 8, [log_lines(900.0)] * 10)
    ours, other_target = write_pair(tmp_path / "ours")
    for path in other_target.folder.glob("result_*.json"):
        path.write_text(path.read_text().replace('"target": 0.98', '"target": 0.5'))
    for sides, sentence in [
        ([base], "expected results on two numbers of devices or more, found 1"),
        ([base, equal], "more devices than the 8 of the base acme one, found 8"),
        ([base, side_of(read_package(ours))], "expected a result of 'resnet/laptop'"),
        (
            [side_of(read_package(each)) for each in (ours, other_target)],
            "expected the quality target 0.98, as the base has, found 0.5",
        ),
    ]:
        with pytest.raises(UserError, match=sentence) as refused:
            scale(sides)
        assert refused.value.exit_code is ExitCode.USAGE


def test_results_that_tell_too_little_are_refused(tmp_path: Path) -> None:
    few = write_on(tmp_path / "few", 1, times_s=[10.0, 11.0])
    none = write_on(tmp_path / "none", 1, times_s=[10.0] * 3, ended=[0, 1, 2])
    nowhere = write_result(tmp_path / "nowhere")
    for package, sentence in [
        (few, "expected 3 completed runs or more, found 2"),
        (none, "expected 3 completed runs or more, found none"),
        (nowhere, "how many accelerators or cores the system has, found no such number"),
    ]:
        with pytest.raises(UserError, match=sentence) as refused:
            side_of(read_package(package))
        assert refused.value.exit_code is ExitCode.INVALID


def test_runs_of_several_batches_are_of_no_kind(tmp_path: Path) -> None:
    base, other = write_pair(tmp_path)
    edit_log(other, 1, lambda bodies: bodies.pop(place(bodies, "global_batch_size")))

    assert scaling_of(base, other).results[0].kind == "unknown"


@NEEDS_DATA
def test_the_published_pair_has_three_efficiencies(rounds: Path) -> None:
    one = rounds / "training_results_v2.0/Baidu/results/XMan4.0_1_node_8_A100_PaddlePaddle/bert"
    many = rounds / "training_results_v2.1/Baidu/results/8_node_64_A100_PaddlePaddle/bert"
    sides = [side_of(read_package(find_packages(path)[0])) for path in (one, many)]

    (scaled,) = scale(sides).results

    assert _shown(scaled) == ["83.8%", "94.0%", "95.6%"]
    assert all(each.rated and each.interval for each in scaled.efficiencies)
    assert scaled.split is not None
    assert scaled.split.total == pytest.approx(scaled.efficiencies[0].value, rel=1e-12)
    assert (f"{scaled.split.samples:.3f}", f"{scaled.split.pace:.3f}") == ("0.891", "0.941")
    losses = dict(scaled.split.losses)
    assert set(losses) == {"steady-training", "start-up"}
    assert 1 - math.fsum(losses.values()) == pytest.approx(scaled.split.pace, rel=1e-12)
    assert scaled.kind == "neither"
    assert scaled.notes[0].startswith("other software: PaddlePaddle (branch: develop, commitID: 1")
    # As time to train, a base of which one run of ten missed its target may take for ever.
    assert scaled.efficiencies[0].ends[1] is None
