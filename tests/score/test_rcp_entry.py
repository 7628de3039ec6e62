from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.errors import ExitCode, UserError
from hybridperf.log import keys
from hybridperf.log.package import Package, read_result
from hybridperf.score.rcp import RcpTest, Reference, compare_with_references, read_rcp_set
from hybridperf.score.rcp_entry import NewPoint, new_point, runs_of_point
from hybridperf.score.score import score_result
from hybridperf.tasks.registry import find_task
from hybridperf.tasks.schema import build
from hybridperf.tasks.task import ReferenceRuns
from tests.packages import EPOCHS, TASK, change, edit_log, write_result

if TYPE_CHECKING:
    from pathlib import Path

TIMES_S = [float(10 + number) for number in range(10)]
SAMPLES = EPOCHS * 1195 // 32 * 32


def _point(package: Package) -> NewPoint:
    result = read_result(package)
    return new_point(result, score_result(result), find_task(TASK))


def test_a_point_says_what_made_it(tmp_path: Path) -> None:
    point = _point(write_result(tmp_path, times_s=TIMES_S))

    (entry,) = point.as_entry().items()
    name, record = entry
    assert isinstance(record, dict)
    assert name == "resnet-laptop_ref_32"
    assert (record["Benchmark"], record["BS"], record["Creator"]) == (TASK, 32, "acme")
    assert record["When"] == "2026-09-21"
    assert record["Platform"] == "HybridPerf 0.1.0, PyTorch 2.15, dp=2"
    assert record["Hyperparams"]["optimizer.lr"] == 0.1
    assert record["Epochs to converge"] == [SAMPLES] * 10


def test_what_was_made_can_be_read_and_gives_the_same_verdict(tmp_path: Path) -> None:
    point = _point(write_result(tmp_path, times_s=TIMES_S))
    (tmp_path / "rcps_resnet-laptop.json").write_text(json.dumps(point.as_entry()))

    read = read_rcp_set(tmp_path)[TASK]
    table = tomllib.loads(point.as_toml())["reference"]
    own = build(ReferenceRuns, table, path="")

    expected = (Reference(32, tuple(map(float, point.samples))),)
    of_task = (Reference(own.global_batch_size, tuple(map(float, own.samples_to_target))),)
    assert read == of_task == expected
    assert own.seeds == tuple(range(1000, 1010))
    for epochs in (EPOCHS - 1, EPOCHS, EPOCHS + 1):
        amounts = [float(epochs * 1195 // 32 * 32)] * 5
        verdicts = {
            compare_with_references(points, 32, amounts, RcpTest(5, 1))
            for points in (read, expected)
        }
        assert len(verdicts) == 1
        assert verdicts.pop().passed is (epochs >= EPOCHS)


def test_attempts_that_were_ended_do_not_matter(tmp_path: Path) -> None:
    point = _point(write_result(tmp_path, times_s=[*TIMES_S, 1.0], ended=[4]))

    assert len(point.samples) == len(point.seeds) == runs_of_point(find_task(TASK)) == 10


@pytest.mark.parametrize(
    ("how", "edit", "sentence"),
    [
        ({"times_s": TIMES_S[:9]}, {}, "expected 10 completed runs or more, found 9"),
        ({"times_s": []}, {}, "expected a result of resnet/laptop, found one of ''"),
        (
            {"times_s": TIMES_S, "ended": [3]},
            {},
            "found 9; give the command that made them again, with --runs 10.",
        ),
        ({"times_s": TIMES_S, "missed": [3]}, {}, "found run 3, which missed it"),
        (
            {"times_s": TIMES_S, "plan": "dp=2,gradients=bf16", "division": "open"},
            {},
            "expected runs that compute what one process does, found gradients=bf16",
        ),
        (
            {"times_s": TIMES_S},
            {"key": keys.GLOBAL_BATCH_SIZE, "value": 64},
            "expected runs of one batch size, found runs of 32, 64",
        ),
    ],
)
def test_runs_that_make_no_point_are_refused(
    tmp_path: Path, how: dict[str, Any], edit: dict[str, Any], sentence: str
) -> None:
    package = write_result(tmp_path, **how)
    if edit:
        edit_log(package, 2, lambda bodies: change(bodies, **edit))

    with pytest.raises(UserError) as refused:
        _point(package)

    assert sentence in str(refused.value)
    assert refused.value.exit_code is ExitCode.INVALID


@pytest.mark.parametrize("value", [None, "many", 0, True, -32])
def test_a_batch_size_that_is_none_is_refused(tmp_path: Path, value: object) -> None:
    package = write_result(tmp_path, times_s=TIMES_S)
    for number in range(10):
        edit_log(
            package, number, lambda bodies: change(bodies, keys.GLOBAL_BATCH_SIZE, value=value)
        )

    with pytest.raises(UserError, match="runs that log their global_batch_size"):
        _point(package)
