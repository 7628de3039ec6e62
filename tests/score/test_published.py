"""Logs of MLPerf's rounds as they may also be: nothing in them raises."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridperf.log.package import find_packages, read_package
from hybridperf.score.compare import compare
from hybridperf.score.metrics import row_of
from hybridperf.score.official import Official, official_score
from hybridperf.score.rcp import Reference
from hybridperf.score.run_score import known_mean
from hybridperf.score.scaling import side_of
from hybridperf.score.score import score_result
from tests.packages import VALID
from tests.score.made_up_round import line, log_lines, write_round

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hybridperf.score.rcp import RcpSet

TIMES_S = [100.0, 110.0, 120.0, 130.0, 140.0]


def _official(path: Path) -> Official:
    (package,) = find_packages(path)
    result = read_package(package)
    return official_score(result, score_result(result), VALID, None, "published")


def _rewrite(folder: Path, number: int, change: Callable[[bytes], bytes]) -> None:
    path = folder / f"result_{number}.txt"
    path.write_bytes(change(path.read_bytes()))


def test_a_round_is_scored(tmp_path: Path) -> None:
    write_round(tmp_path, [log_lines(time_s) for time_s in TIMES_S])

    row = row_of(_official(tmp_path))

    assert (row["submitter"], row["system"], row["benchmark"]) == ("acme", "eight", "bert")
    assert (row["division"], row["accelerators"], row["runs"]) == ("closed", 8, 5)
    assert row["olympic_minutes"] == row["official_minutes"] == 2.0
    assert (row["samples_to_target"], row["evaluations"]) == (2_500_000, 2)
    assert row["dropped"] == [
        {"run": 0, "file": "result_0.txt", "time_s": 100.0, "why": "fastest"},
        {"run": 4, "file": "result_4.txt", "time_s": 140.0, "why": "slowest"},
    ]


@pytest.mark.parametrize(
    "change",
    [
        lambda log: log.replace(b":::MLLOG", b"rank 0: \x1b[31m:::MLLOG"),
        lambda log: log.replace(b":::MLLOG", b":::MLLOG {cut :::MLLOG"),
        lambda log: b"\xff caf\xe9\n" + log.replace(b"train.py", b"caf\xe9.py"),
        lambda log: log.replace(b"\n", b"\r\n"),
        lambda log: log + b":::MLLOG {not json run_stop\n:::MLLOG [1]\n:::MLLOG\n",
        lambda log: log + line("run_stop", None, 999, status="aborted").encode(),
        lambda log: log + line("run_start", None, 1).encode(),
        lambda log: log + b':::MLLOG {"key": "run_stop"}\n',
        lambda log: log + b':::MLLOG {"key": "run_stop", "value": "' + b"x" * 2**17 + b'"}\n',
        lambda log: log + b':::MLLOG {"key": "eval_accuracy", "value": ' + b"[" * 9999 + b"\n",
    ],
)
def test_what_else_is_in_a_log_does_not_matter(
    tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    folder = write_round(tmp_path, [log_lines(time_s) for time_s in TIMES_S])
    for number in range(5):
        _rewrite(folder, number, change)

    assert _official(tmp_path).minutes == 2.0


@pytest.mark.parametrize(
    ("key", "lost"),
    [
        ("run_start", "olympic_minutes"),
        ("run_stop", "olympic_minutes"),
        ("eval_accuracy", "samples_to_target"),
        ("submission_benchmark", None),
        ("submission_division", None),
        ("train_samples", None),
        ("global_batch_size", None),
    ],
)
def test_a_missing_key_is_null(tmp_path: Path, key: str, lost: str | None) -> None:
    logs = [[each for each in log_lines(time_s) if f'"{key}"' not in each] for time_s in TIMES_S]
    write_round(tmp_path, logs)

    row = row_of(_official(tmp_path))

    assert json.loads(json.dumps(row, allow_nan=False)) == row
    assert row["benchmark"] == "bert"
    assert (row["olympic_minutes"] is None) is (lost == "olympic_minutes")
    if lost:
        assert row[lost] is None


@pytest.mark.parametrize("lines", [[], ["nothing"], log_lines(1, status="aborted")])
def test_a_run_that_is_not_successful_is_the_slowest(tmp_path: Path, lines: list[str]) -> None:
    write_round(tmp_path, [*(log_lines(time_s) for time_s in TIMES_S), lines])

    official = _official(tmp_path)

    assert official.olympic_minutes == pytest.approx(125 / 60)
    assert row_of(official)["dropped"][1] == {  # type: ignore[index]
        "run": 5,
        "file": "result_5.txt",
        "time_s": None,
        "why": "slowest: did not reach the target",
    }


def test_two_of_them_leave_no_score(tmp_path: Path) -> None:
    write_round(tmp_path, [*(log_lines(time_s) for time_s in TIMES_S), [], []])

    row = row_of(_official(tmp_path))

    assert row["olympic_minutes"] is row["official_minutes"] is None


def test_more_runs_than_the_rules_ask_for_are_scored_by_the_median_window(tmp_path: Path) -> None:
    # Twelve runs of BERT, of which ten make a result: three windows.
    times_s = [1.0, 100.0, *[110.0] * 8, 200.0, 1000.0]
    write_round(tmp_path, [log_lines(time_s) for time_s in times_s])

    row = row_of(_official(tmp_path))

    # Without their ends the windows are 100 and 110 eight times, or 110 eight times; or with 200.
    assert row["olympic_minutes"] == pytest.approx(110 / 60)
    assert (row["runs"], row["required_runs"]) == (12, 10)
    assert isinstance(row["dropped"], list)
    whys = {each["run"]: each["why"] for each in row["dropped"]}
    assert whys == {
        0: "not scored: outside the runs in a row whose olympic mean is the median",
        1: "fastest",
        10: "slowest",
        11: "not scored: outside the runs in a row whose olympic mean is the median",
    }


def test_steady_throughput_is_from_the_first_evaluation_to_the_last(tmp_path: Path) -> None:
    logs = [log_lines(time_s) for time_s in TIMES_S]
    for lines, time_s in zip(logs, TIMES_S, strict=True):
        lines[4:4] = [line("tracked_stats", {"throughput": 1e9}, time_s)]  # the submitter's word
    folder = write_round(tmp_path, logs)

    row = row_of(_official(tmp_path))

    # Half of the samples are trained on in the second half of the time. Of all runs, as in scale.
    assert row["steady_samples_per_s"] == pytest.approx(
        math.fsum(2_500_000 / time_s for time_s in TIMES_S) / 5
    )
    side = side_of(read_package(find_packages(folder)[0]))
    assert row["steady_samples_per_s"] == known_mean(run.steady_samples_per_s for run in side.runs)


def test_steady_throughput_of_one_evaluation_is_null(tmp_path: Path) -> None:
    write_round(tmp_path, [[*log_lines(time_s)[:4], *log_lines(time_s)[5:]] for time_s in TIMES_S])

    assert row_of(_official(tmp_path))["steady_samples_per_s"] is None


def test_names_with_a_time_in_them_are_found_and_sorted(tmp_path: Path) -> None:
    folder = write_round(tmp_path, [log_lines(time_s) for time_s in TIMES_S])
    for number in range(5):
        new = f"result_{2210141220298425390 + number}_{number:02}.txt"
        (folder / f"result_{number}.txt").rename(folder / new)
    (folder / "result_10.txt").write_text("\n".join(log_lines(50)))

    assert [run.time_to_train_s for run in _official(tmp_path).score.runs] == [50.0, *TIMES_S]


def test_epoch_num_that_stands_still_gives_way_to_train_samples(tmp_path: Path) -> None:
    logs = [log_lines(time_s, samples=1) for time_s in TIMES_S]
    for lines in logs:
        lines[4:7] = [
            line("eval_accuracy", 0.5, 1, epoch_num=1),
            line("eval_accuracy", 0.73, 2, epoch_num=1),
            line("train_samples", 2_600_000.0, 2),
        ]
    write_round(tmp_path, logs)

    row = row_of(_official(tmp_path))

    assert row["samples_to_target"] == 2_600_000
    assert row["throughput_samples_per_s"] == pytest.approx(
        math.fsum(2_600_000 / time_s for time_s in TIMES_S[1:-1]) / 3
    )


@pytest.mark.parametrize(
    ("text", "factor"),
    [
        ('{"scaling_factor": 1.25}', 1.25),
        ('{"scaling_factor": 0.5}', None),
        ('{"scaling_factor": "2"}', None),
        ('{"scaling_factor": 1e300}', None),
        ("{}", None),
        ("[", None),
        ("\xff", None),
    ],
)
def test_the_published_factor(tmp_path: Path, text: str, factor: float | None) -> None:
    folder = write_round(tmp_path, [log_lines(time_s) for time_s in TIMES_S])
    (folder / "scaling.json").write_text(text, encoding="latin-1")

    row = row_of(_official(tmp_path))

    assert row["rcp_factor"] == factor
    assert row["official_minutes"] == (2 * factor if factor else None)


@pytest.mark.parametrize(
    ("facts", "accelerators"),
    [
        ({"number_of_nodes": 1.0, "accelerators_per_node": "8"}, 8),
        ({"number_of_nodes": "16", "accelerators_per_node": "0"}, 0),
        ({"number_of_nodes": "one", "accelerators_per_node": "8"}, None),
        ({"number_of_nodes": "1"}, None),
        ({"number_of_nodes": [1], "accelerators_per_node": {}}, None),
        ({"number_of_nodes": "9" * 400, "accelerators_per_node": "8"}, None),
    ],
)
def test_accelerators_are_counted_where_they_are_told(
    tmp_path: Path, facts: dict[str, object], accelerators: int | None
) -> None:
    write_round(tmp_path, [log_lines(time_s) for time_s in TIMES_S], facts=facts)

    assert _official(tmp_path).accelerators == accelerators


def test_two_rounds_in_one_folder_stay_apart(tmp_path: Path) -> None:
    for name in ("v1", "v2"):
        write_round(tmp_path / name, [log_lines(time_s) for time_s in TIMES_S])

    assert [package.root.name for package in find_packages(tmp_path)] == ["v1", "v2"]


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)


@settings(max_examples=60)
@given(st.data())
def test_no_value_raises(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    logs = []
    for time_s in TIMES_S:
        lines = [json.loads(each.removeprefix(":::MLLOG ")) for each in log_lines(time_s)]
        for entry in lines:
            if data.draw(st.integers(0, 3)) == 0:
                where = data.draw(st.sampled_from(["value", "metadata", "time_ms", "epoch_num"]))
                changed = entry["metadata"] if where == "epoch_num" else entry
                changed[where] = data.draw(_VALUES)
        logs.append([f":::MLLOG {json.dumps(entry)}" for entry in lines])
    root = tmp_path_factory.mktemp("any")
    write_round(root, logs)
    (package,) = find_packages(root)
    result = read_package(package)
    references: RcpSet = {"bert": (Reference(448, (2e6, 2.4e6, 2.5e6, 2.6e6)),)}

    official = official_score(result, score_result(result), VALID, references)

    json.dumps(row_of(official), allow_nan=False)
    json.dumps(compare(official, official).as_json(), allow_nan=False)
