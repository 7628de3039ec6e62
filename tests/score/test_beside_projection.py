"""A run beside its projection: the shares, the part that differs most, and hints."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.log import keys
from hybridperf.log.package import read_result
from hybridperf.report.terminal import scores_text
from hybridperf.rules.check import judge_result
from hybridperf.score.metrics import METRICS, row_of
from hybridperf.score.official import official_of
from hybridperf.score.projection import (
    MUCH_SLOWER,
    StepComparison,
    StepPart,
    mean_comparison,
    why_slow,
)
from hybridperf.score.score import score_result
from hybridperf.tasks.registry import find_task
from tests.packages import (
    BUBBLE,
    EPOCHS,
    EXPOSED,
    VALID,
    change,
    edit_log,
    place,
    write_result,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hybridperf.log.package import Package
    from hybridperf.score.official import Official

RESNET = find_task("resnet/laptop")
RATE = EPOCHS * 1195 // 32 * 32 / 10.0  #: of a run of 10 s whose evaluations take no time
STEP_S = RESNET.training.global_batch_size / RATE
OWN = {"projected_samples_per_s", "of_projected", "beside_projection", "slow_steps"}
#: of two replicas, whose step takes 4/5 of what it takes in the made-up logs
PROJECTION: dict[str, Any] = {
    "step_s": 0.8 * STEP_S,
    "samples_per_s": RATE / 0.8,
    "ranks": [
        {
            "stage": 0,
            "compute_s": 0.020,
            "waiting_s": 0.001,
            "exposed_communication_s": 0.002,
            "optimizer_s": 0.003,
            "memory_bytes": 10**9,
        }
    ],
    "timeline": [{"rank": 0, "actions": [["forward", 0, 0, 0, 0.0, 0.01]]}],
    "source": {"kind": "profile", "date": "2026-11-22", "sha256": "0" * 64},
}


def _stage(replica: int, **seconds: float) -> dict[str, Any]:
    """Return what a rank states of a block, as seconds of one of its steps."""
    parts = {"compute_s": 0.020, "waiting_s": 0.001, "exposed_communication_s": 0.002}
    return (
        {"replica": replica, "stage": 0} | parts | {"optimizer_s": 0.003, "input_s": 0.0} | seconds
    )


def _times(stage: dict[str, Any], steps: int) -> dict[str, Any]:
    return {
        name: value * steps if name.endswith("_s") and isinstance(value, float) else value
        for name, value in stage.items()
    }


def _state(
    package: Package, stages: Sequence[Any] = (), projection: object = PROJECTION, run: int = 0
) -> None:
    """Have the log of a run state its projection, and the seconds of ranks in every block."""

    def edit(bodies: list[str]) -> None:
        at = place(bodies, keys.HYPERPARAMETERS)
        line = json.loads(bodies[at]) | {"key": keys.PROJECTION, "value": projection}
        bodies.insert(at + 1, json.dumps(line))
        for nth, block in enumerate(RESNET.blocks()[:EPOCHS]):
            shares = {"bubble": BUBBLE, "exposed_communication": EXPOSED}
            blocks = [_times(each, len(RESNET.steps(block))) for each in stages]
            change(bodies, keys.TRACKED_STATS, 2 * nth, value=shares | {"stages": blocks})

    edit_log(package, run, edit)


def _official(tmp_path: Path, stages: Sequence[Any] = (), **how: Any) -> Official:
    package = write_result(tmp_path, times_s=[10.0])
    _state(package, stages, **how)
    return official_of(read_result(package), VALID)


def test_rates_are_shares_of_the_projected_one(tmp_path: Path) -> None:
    row = row_of(_official(tmp_path))

    assert row["of_projected"] == pytest.approx(0.8)
    assert row["projected_samples_per_s"] == pytest.approx(RATE / 0.8)
    measured, projected = STEP_S * 1e3, 0.8 * STEP_S * 1e3
    assert row["beside_projection"] == (
        f"a step takes {measured:.1f} ms, projected {projected:.1f} ms "
        "from a profile of 2026-11-22."
    )


def test_without_a_projection_nothing_is_said(tmp_path: Path) -> None:
    official = official_of(read_result(write_result(tmp_path, times_s=[10.0])), VALID)

    assert {row_of(official)[name] for name in OWN} == {None}
    assert "projected" not in scores_text([official], 200)


@pytest.mark.parametrize(
    ("slower", "words"),
    [
        ({"compute_s": 0.030}, "computation of replica 1: 30.0 ms, projected 20.0 ms"),
        ({"compute_s": 0.005}, "computation of replica 1: 5.0 ms, projected 20.0 ms"),
        ({"waiting_s": 0.011}, "waiting: 6.0 ms, projected 1.0 ms"),  # the mean of both
        ({"exposed_communication_s": 0.022}, "exposed communication: 12.0 ms, projected 2.0 ms"),
        ({"optimizer_s": 0.013}, "update: 8.0 ms, projected 3.0 ms"),
        ({"input_s": 0.014}, "input: 7.0 ms, projected 0.0 ms"),
    ],
)
def test_the_part_that_differs_most_is_named(
    tmp_path: Path, slower: dict[str, float], words: str
) -> None:
    official = _official(tmp_path, [_stage(0), _stage(1, **slower)])

    beside = official.score.beside_projection
    assert beside is not None
    assert beside.sentence.endswith(f"; the largest difference is in {words}.")
    assert f"dp=2: {beside.sentence}" in scores_text([official], 300).splitlines()


def test_ranks_of_a_pipeline_are_compared_with_those_of_their_stage(tmp_path: Path) -> None:
    (first,) = PROJECTION["ranks"]
    second = first | {"stage": 1, "compute_s": 0.040}
    stages = [_stage(0), _stage(0, compute_s=0.041) | {"stage": 1}]
    projection = PROJECTION | {"ranks": [second, first]}

    beside = _official(tmp_path, stages, projection=projection).score.beside_projection

    assert beside is not None
    assert [
        (part.rank, part.projected_s) for part in beside.parts if part.name == "computation"
    ] == [("stage 0", 0.020), ("stage 1", 0.040)]


def test_communication_that_is_not_stated_apart_is_computation(tmp_path: Path) -> None:
    stages = [_stage(0), _stage(1)]
    for each in stages:
        del each["exposed_communication_s"]

    beside = _official(tmp_path, stages).score.beside_projection

    assert beside is not None
    assert beside.parts[0].projected_s == pytest.approx(0.022)
    assert "exposed communication" not in {part.name for part in beside.parts}


def test_all_runs_are_averaged(tmp_path: Path) -> None:
    package = write_result(tmp_path)
    for number, compute_s in enumerate((0.02, 0.02, 0.03, 0.04, 0.04)):
        _state(package, [_stage(0, compute_s=compute_s), _stage(1)], run=number)

    beside = score_result(read_result(package)).beside_projection

    assert beside is not None
    assert beside.parts[0].measured_s == pytest.approx(0.03)


def test_different_profiles_have_no_date_in_common() -> None:
    one = StepComparison(1.0, 1.0, 8.0, "a profile of 2026-11-22", ())
    other = StepComparison(3.0, 1.0, 8.0, "a profile of 2026-11-23", ())

    mean = mean_comparison([one, other])

    assert mean is not None
    assert (mean.step_s, mean.source) == (2.0, "")
    assert mean_comparison([]) is None


def _beside(step_s: float, parts: list[StepPart]) -> StepComparison:
    return StepComparison(step_s, 0.010, 100.0, "", tuple(parts))


def _computation(*measured_s: float) -> list[StepPart]:
    return [
        StepPart("computation", f"replica {n}", each, 0.008) for n, each in enumerate(measured_s)
    ]


@pytest.mark.parametrize(
    ("parts", "name", "words"),
    [
        (
            [*_computation(0.009, 0.009, 0.020), StepPart("waiting", "", 0.008, 0.0)],
            "slow rank",
            "replica 2 computes 2.5 times as long as projected, others 1.1 times",
        ),
        (
            _computation(0.018, 0.020),
            "oversubscription",
            "every rank computes at least 2.2 times as long as projected",
        ),
        (_computation(0.016), "oversubscription", "every rank computes at least 2.0 times"),
        (
            [
                *_computation(0.009, 0.008),
                StepPart("waiting", "", 0.005, 0.001),
                StepPart("exposed communication", "", 0.004, 0.001),
            ],
            "slow links",
            "waiting and exposed communication take 9.0 ms of a step, projected 2.0 ms",
        ),
        (
            [*_computation(0.008), StepPart("input", "", 0.010, 0.0)],
            "slow input",
            "input take 10.0 ms",
        ),
        (_computation(0.010), "slow steps", "a step takes 2.0 times as long as projected"),
        ([], "slow steps", "a step takes 2.0 times as long as projected"),
    ],
)
def test_much_slower_steps_have_a_hint(parts: list[StepPart], name: str, words: str) -> None:
    hint = why_slow(_beside(0.020, parts))

    assert hint is not None
    assert (hint.name, hint.detail[: len(words)]) == (name, words)
    assert hint.remedy.endswith(".")
    assert why_slow(_beside(0.010 * MUCH_SLOWER - 1e-6, parts)) is None


def test_a_hint_is_said_where_scores_are(tmp_path: Path) -> None:
    projection = PROJECTION | {"step_s": STEP_S / 3}
    official = _official(tmp_path, [_stage(0), _stage(1, compute_s=0.080)], projection=projection)

    hint = str(row_of(official)["slow_steps"])
    assert hint.startswith("slow rank: replica 1 computes 4.0 times")
    assert f"dp=2: {hint}" in scores_text([official], 400).splitlines()


def _changed(**fields: object) -> dict[str, Any]:
    return PROJECTION | fields


def _changed_rank(**fields: object) -> dict[str, Any]:
    return PROJECTION | {"ranks": [PROJECTION["ranks"][0] | fields]}


@pytest.mark.parametrize(
    "projection",
    [
        None,
        7,
        "fast",
        [PROJECTION] * 20,
        {},
        _changed(step_s="0.1"),
        _changed(step_s=0),
        _changed(step_s=-1.0),
        _changed(step_s=1e300),
        _changed(step_s=True),
        _changed(step_s=[0.1]),
    ],
)
def test_a_hostile_projection_is_none(tmp_path: Path, projection: object) -> None:
    official = _official(tmp_path, [_stage(0), _stage(1)], projection=projection)

    assert {row_of(official)[name] for name in OWN} == {None}


@pytest.mark.parametrize(
    "projection",
    [
        _changed(ranks="all"),
        _changed(ranks=[[]] * 5_000),
        _changed(ranks=[{"stage": 0}]),
        _changed(ranks=PROJECTION["ranks"] * 300),
        _changed_rank(stage=-1),
        _changed_rank(stage="0"),
        _changed_rank(stage=10**15),
        _changed_rank(compute_s="<script>"),
        _changed_rank(waiting_s=-1.0),
        _changed_rank(optimizer_s=1e300),
        _changed_rank(exposed_communication_s=None),
        _changed(timeline={"rank": [0]}),
        _changed(samples_per_s={"a": "b"}),
        _changed(source={"kind": "profile", "date": "2026-11-22\n<script>"}),
        _changed(source={"kind": ["device model"], "date": 7}),
        _changed(source="a profile"),
    ],
)
def test_a_hostile_projection_changes_nothing_else(tmp_path: Path, projection: object) -> None:
    plain = write_result(tmp_path / "plain", times_s=[10.0])
    hostile = write_result(tmp_path / "hostile", times_s=[10.0])
    stages = [_stage(0), _stage(1)]
    _state(plain, stages, projection={})
    _state(hostile, stages, projection=projection)

    expected, found = (row_of(official_of(read_result(each), VALID)) for each in (plain, hostile))
    assert {name: found[name] for name in METRICS.keys() - OWN} == {
        name: expected[name] for name in METRICS.keys() - OWN
    }
    assert "<script>" not in json.dumps(found)
    judged = [judge_result(read_result(each)).findings for each in (plain, hostile)]
    assert [each.rule for each in judged[0]] == [each.rule for each in judged[1]]


@pytest.mark.parametrize(
    "change_to",
    [
        {"replica": "0"},
        {"stage": 1.5},
        {"compute_s": None},
        {"waiting_s": -1.0},
        {"optimizer_s": 1e300},
        {"exposed_communication_s": "0"},
        {"replica": 1},  # twice
        {"stage": 7},  # of which nothing is projected
    ],
)
def test_hostile_ranks_have_no_parts(tmp_path: Path, change_to: dict[str, object]) -> None:
    stages = [_stage(0) | change_to, _stage(1)]

    beside = _official(tmp_path, stages).score.beside_projection

    assert beside is not None
    assert beside.parts == ()
