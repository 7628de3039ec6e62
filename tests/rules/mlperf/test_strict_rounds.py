"""Mode strict on MLPerf's published logs: what it finds in them, and edits that it finds.

``strict_rounds.csv`` says how many logs of each result have findings of each rule. Of its errors in
logs that the official checker accepted, each was held against the log and the sentence quoted:

* mlperf.cadence, 20 logs: Dell's 8xR750xa and 8xXE8545 train BERT with batches of 1,536, for which
  an evaluation is due every 150,000 samples, and evaluate every 175,104.
* mlperf.thoroughness, 5 logs: Dell's XE8545 with A100 of 80 GB says 49,999 eval_samples of 50,000.
* mlperf.cache, 1 log: Intel's open result_9 cleared its caches in the year 2497, by a digit too
  many in a time stamp; result_7 of the same result did so 12 days before, which is a warning.

The three errors of mlperf.configuration are in a run that missed the target: Dell's XE8545 with
A100 of 40 GB ran ResNet with batches of 1,024 and once of 816.
"""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from hybridperf.rules.check import check_path
from hybridperf.rules.mlperf.ruleset import load_ruleset
from tests.rules.mlperf.strict_logs import (
    RULESET,
    Lines,
    drop,
    metadata,
    place,
    read_lines,
    repeat,
    time,
    value,
    where,
    without_evaluations,
    write,
)
from tests.score.rounds import NEEDS_DATA, oracle, unpack

if TYPE_CHECKING:
    from collections.abc import Callable

    from hybridperf.findings import Finding
    from hybridperf.rules.verdict import Verdict

pytestmark = NEEDS_DATA

TABLE: Final = Path(__file__).parent / "strict_rounds.csv"
HOUR_MS: Final = 3_600_000
NVIDIA: Final = "training_results_v2.1/NVIDIA/results/dgxa100_ngc22.04_mxnet/resnet"


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("rounds"))


@pytest.fixture(scope="module")
def findings(rounds: Path) -> list[Finding]:
    """What the rules of `hybridperf.rules.mlperf` find in both rounds."""
    return _ours(check_path(rounds, RULESET, "strict"))


def _ours(verdict: Verdict) -> list[Finding]:
    ours = {name for name in load_ruleset(RULESET).rules if name.startswith("mlperf.")}
    return [each for each in verdict.findings if each.rule in ours]


def test_the_rounds_have_these_findings_and_no_others(findings: list[Finding]) -> None:
    logs = {(each.rule, str(each.severity), each.path) for each in findings}
    found = Counter((*_result(path), rule, severity) for rule, severity, path in logs)

    with TABLE.open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    assert found == {tuple(row[:-1]): int(row[-1]) for row in rows}


def _result(path: str) -> tuple[str, ...]:
    """Return round, organisation, system and benchmark of a log or a result."""
    root, org, _, system, benchmark = path.split("/")[:5]
    return root.removeprefix("training_results_"), org, system, benchmark


def test_errors_in_logs_that_were_accepted_are_those_that_were_reviewed(
    findings: list[Finding],
) -> None:
    accepted = {
        f"training_results_v2.1/{row['submitter']}/results/{row['system']}/{row['benchmark']}"
        f"/{row['file']}"
        for row in oracle("v2.1_log_verdicts.csv")
        if row["valid"] == "True"
    }
    errors = {
        (each.rule, each.path)
        for each in findings
        if each.severity == "error" and (each.path in accepted or "v2.0" in each.path)
    }

    assert Counter(rule for rule, _ in errors) == {
        "mlperf.cadence": 20,
        "mlperf.thoroughness": 5,
        "mlperf.cache": 1,
    }


@pytest.mark.parametrize(
    ("rule", "logs", "folder", "sentence"),
    [
        (
            "mlperf.cadence",
            10,
            "v2.1/Dell/results/8xR750xax4A100-PCIE-80GB/bert",
            "every 150,000 samples rounded up to batches of 1,536, found 17",
        ),
        (
            "mlperf.cadence",
            10,
            "v2.1/Dell/results/8xXE8545x4A100-SXM-40GB/bert",
            "every 150,000 samples rounded up to batches of 1,536, found 17",
        ),
        (
            "mlperf.cadence",
            10,
            "v2.1/HPE/results/HPE-ProLiant-XL675d-Gen10-Plus_A100-SXM-80GB_16N_pytorch/bert",
            "every 200,000 samples rounded up to batches of 6,144, found 172,032 up to",
        ),
        (
            "mlperf.cadence",
            20,
            "v2.1/MosaicML",
            "every 150,000 samples rounded up to batches of 448, found 24,640 up to",
        ),
        (
            "mlperf.configuration",
            1,
            "v2.1/Dell/results/XE8545x4A100-SXM-40GB/resnet",
            "expected global_batch_size = 1024, as in 4 of 5 runs, found 816",
        ),
        ("mlperf.cache", 40, "v2.1", "expected cache_clear with the value true, found None"),
        ("mlperf.cache", 80, "v2.0", "expected cache_clear before init_start, found after it"),
        ("mlperf.seed", 30, "v2.1/Intel-HabanaLabs", "expected a seed, found none"),
        ("mlperf.untimed", 129, "v2.1", "expected run_start within 1 s of init_stop, found"),
        ("mlperf.time", 32, "v2.1", "expected no step back of more than 1000 ms"),
        ("mlperf.time", 6, "v2.1", "expected stamps of one clock on all lines"),
    ],
)
def test_irregularities_of_the_rounds_are_found_by_name(
    findings: list[Finding], rule: str, logs: int, folder: str, sentence: str
) -> None:
    here = {
        each.path
        for each in findings
        if each.rule == rule
        and each.path.startswith(f"training_results_{folder}")
        and sentence in each.sentence
    }

    assert len(here) == logs


def _first_reaches(lines: Lines) -> None:
    value("eval_accuracy", 0.7606, 0)(lines)
    value("eval_accuracy", 0.1, -1)(lines)


def _only_last_evaluation(lines: Lines) -> None:
    count = sum(1 for each in lines if each["key"] == "eval_accuracy")
    without_evaluations(*range(count - 1))(lines)


def _batch_times_7(lines: Lines) -> None:
    value("global_batch_size", 7 * where(lines, "global_batch_size")["value"])(lines)


def _stop_before_start(lines: Lines) -> None:
    start = where(lines, "run_start")["time_ms"]
    where(lines, "run_stop").update(time_ms=start - 1000)


ALONE = [
    ("aborted", False, metadata("run_stop", status="aborted"), {"mlperf.stop"}),
    (
        "stopped before it started",
        False,
        _stop_before_start,
        {"mlperf.clock", "mlperf.timed", "mlperf.time"},
    ),
    (
        "started 1000 s late",
        False,
        time("run_start", 1_000_000),
        {"mlperf.timed", "mlperf.time", "mlperf.untimed"},
    ),
    ("two starts", False, repeat("run_start"), {"mlperf.one_run", "mlperf.keys"}),
    ("only the first evaluation reached the target", False, _first_reaches, {"mlperf.stop"}),
    (
        "all evaluations but the last left out",
        False,
        _only_last_evaluation,
        {"mlperf.cadence", "mlperf.evaluation_time"},
    ),
    ("no seed", True, drop("seed"), {"mlperf.seed"}),
    ("caches not cleared", False, value("cache_clear", False), {"mlperf.cache"}),
    (
        "caches cleared 5 h before",
        True,
        time("cache_clear", -5 * HOUR_MS),
        {"mlperf.cache", "mlperf.time"},
    ),
    ("momentum .5", False, value("lars_opt_momentum", 0.5), {"mlperf.hyperparameters"}),
    (
        "epoch -3",
        False,
        metadata("eval_accuracy", 4, epoch_num=-3),
        {"mlperf.epochs", "mlperf.cadence"},
    ),
    ("one evaluation sample", False, value("eval_samples", 1), {"mlperf.thoroughness"}),
    ("training samples in words", False, value("train_samples", "x"), {"mlperf.train_samples"}),
]
#: what no log tells alone: the rules allow any batch size, learning rate and division
TOGETHER = [
    ("batch x 7", _batch_times_7),
    ("learning rate 123456", value("lars_opt_base_learning_rate", 123456)),
    ("another division", value("submission_division", "open")),
]


@pytest.mark.parametrize(
    ("valid", "edit", "rules"), [pytest.param(*each, id=name) for name, *each in ALONE]
)
def test_an_edit_that_the_official_checker_lets_pass_is_found_in_the_log(
    rounds: Path,
    tmp_path: Path,
    valid: bool,  # where no sentence of the rules makes what is found an error
    edit: Callable[[Lines], object],
    rules: set[str],
) -> None:
    lines = read_lines(rounds / NVIDIA / "result_0.txt")
    before = _places(check_path(write(tmp_path / "log.txt", lines), RULESET, "strict"))
    edit(lines)
    path = write(tmp_path / "log.txt", lines)

    assert check_path(path, RULESET, "as-published").valid
    after = check_path(path, RULESET, "strict")
    assert {rule for rule, *_ in _places(after) - before} == rules
    assert after.valid == valid


@pytest.mark.parametrize("edit", [pytest.param(edit, id=name) for name, edit in TOGETHER])
def test_an_edit_that_no_log_tells_alone_is_found_among_the_runs(
    rounds: Path, tmp_path: Path, edit: Callable[[Lines], object]
) -> None:
    folder = tmp_path / "round" / "NVIDIA" / "results" / "dgxa100_ngc22.04_mxnet" / "resnet"
    folder.mkdir(parents=True)
    for number in range(5):
        lines = read_lines(rounds / NVIDIA / f"result_{number}.txt")
        if number == 0:
            edit(lines)
        write(folder / f"result_{number}.txt", lines)

    assert check_path(folder / "result_0.txt", RULESET, "as-published").valid
    new = {
        (each.rule, each.severity, each.path.rpartition("/")[2])
        for each in _ours(check_path(folder, RULESET, "strict"))
        if each.rule != "mlperf.untimed" and each.path.endswith("result_0.txt")
    }
    assert new == {("mlperf.configuration", "error", "result_0.txt")}


def _places(verdict: Verdict) -> set[tuple[str, str, str]]:
    return {
        (each.rule, each.expected, each.found)
        for each in verdict.findings
        if each.rule.startswith("mlperf.")
    }


def test_the_log_that_is_edited_is_otherwise_clean(rounds: Path) -> None:
    lines = read_lines(rounds / NVIDIA / "result_0.txt")
    found = check_path(rounds / NVIDIA / "result_0.txt", RULESET, "strict")

    assert [each.rule for each in found.findings] == ["mlperf.untimed"]
    assert place(lines, "run_start") > place(lines, "init_stop")
