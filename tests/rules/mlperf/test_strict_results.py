"""Strict rules of the runs of a result together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridperf.findings import Severity
from hybridperf.log.package import Package, Result, SealedRun
from hybridperf.log.reader import read_published_log
from hybridperf.rules.check import check_result
from tests.rules.mlperf.strict_logs import (
    RULESET,
    Lines,
    drop,
    line,
    metadata,
    resnet,
    time,
    value,
    write,
)
from tests.rules.round_folder import RESULT as ROUND_RESULT
from tests.rules.round_folder import findings as round_findings
from tests.rules.round_folder import write_submission

if TYPE_CHECKING:
    from collections.abc import Callable

    from hybridperf.findings import Finding

ERROR, WARNING = Severity.ERROR, Severity.WARNING


@pytest.fixture
def runs() -> list[Lines]:
    """Five good runs of ResNet, one after another."""
    made = [resnet() for _ in range(5)]
    for number, lines in enumerate(made):
        value("seed", 1000 + number)(lines)
        for each in lines:
            each["time_ms"] += number * 3_600_000
    return made


def _findings(folder: Path, runs: list[Lines]) -> list[Finding]:
    sealed = tuple(
        SealedRun(number, read_published_log(write(folder / str(number), lines), str(number)), None)
        for number, lines in enumerate(runs)
    )
    package = Package(Path("/round"), "o", "s", "resnet", Path("/round"))
    result = Result(package, sealed, None, "", ())
    found = check_result(result, RULESET)
    return [each for each in found if each.rule.startswith("mlperf.")]


def test_a_result_as_the_rules_say_has_no_findings(runs: list[Lines], tmp_path: Path) -> None:
    assert _findings(tmp_path, runs) == []


def _one(number: int, *edits: Callable[[Lines], object]) -> Callable[[list[Lines]], object]:
    return lambda runs: [edit(runs[number]) for edit in edits]


def _miss(lines: Lines) -> None:
    value("eval_accuracy", 0.7, 2)(lines)
    metadata("run_stop", status="aborted")(lines)


def _more(runs: list[Lines]) -> None:
    extra = [dict(each, time_ms=each["time_ms"] + 7) for each in runs[4]]
    value("seed", 7)(extra)
    runs.append(extra)


def _copy(runs: list[Lines]) -> None:
    runs[3] = [dict(each) for each in runs[1]]
    value("seed", 77)(runs[3])


@pytest.mark.parametrize(
    ("edit", "rule", "severity", "sentence"),
    [
        (lambda runs: runs.pop(), "mlperf.runs", ERROR, "expected 5 completed runs, found 4"),
        (_more, "mlperf.runs", WARNING, "the window closest to the median, found 6 runs"),
        (
            _one(2, value("global_batch_size", 3264 * 7)),
            "mlperf.configuration",
            ERROR,
            "2:8: expected global_batch_size = 3264, as in 4 of 5 runs, found 22848",
        ),
        (
            _one(0, value("lars_opt_base_learning_rate", [1])),
            "mlperf.configuration",
            ERROR,
            "expected lars_opt_base_learning_rate = 10.5, as in 4 of 5 runs, found [1]",
        ),
        (
            _one(4, value("submission_division", "open")),
            "mlperf.configuration",
            ERROR,
            "submission_division = 'closed', as in 4 of 5 runs, found 'open'",
        ),
        (
            _one(1, value("seed", 1004)),
            "mlperf.distinct_seeds",
            ERROR,
            "expected a seed of its own, found 1004, as in run 1",
        ),
        (_copy, "mlperf.copies", ERROR, "expected a run of its own, found start and stop of run 1"),
    ],
)
def test_what_is_wrong_with_a_result_is_found_by_name(
    runs: list[Lines],
    tmp_path: Path,
    edit: Callable[[list[Lines]], object],
    rule: str,
    severity: Severity,
    sentence: str,
) -> None:
    edit(runs)

    here = [each for each in _findings(tmp_path, runs) if each.rule == rule]

    assert [each.severity for each in here] == [severity]
    assert sentence in here[0].sentence


def test_batches_of_one_process_may_differ_with_a_warning(
    runs: list[Lines], tmp_path: Path
) -> None:
    for number, lines in enumerate(runs):
        lines.insert(-1, line("d_batch_size", 51 if number == 3 else 408))
        lines[-2]["time_ms"] = lines[-1]["time_ms"]

    (finding,) = _findings(tmp_path, runs)

    assert (finding.rule, finding.severity) == ("mlperf.configuration", WARNING)


def test_one_run_may_miss_the_target_and_two_may_not(runs: list[Lines], tmp_path: Path) -> None:
    _miss(runs[1])
    assert {each.rule for each in _findings(tmp_path, runs)} == {"mlperf.target"}

    drop("run_stop")(runs[3])
    here = [each for each in _findings(tmp_path, runs) if each.rule == "mlperf.missed"]
    assert [each.found for each in here] == ["2: 1, 3"]
    assert here[0].path == "o/results/s/resnet"


@pytest.mark.parametrize(("missing", "found"), [((0, 1), []), ((1, 2), ["2: 1, 2"])])
def test_of_more_runs_than_asked_for_the_median_window_counts(
    runs: list[Lines], tmp_path: Path, missing: tuple[int, ...], found: list[str]
) -> None:
    """Of windows 0-4, 1-5 and 2-6, one or two have two misses."""
    for number in (5, 6):
        _more(runs)
        value("seed", number)(runs[number])
        for each in runs[number]:
            each["time_ms"] += number * 3_600_000
    for number in missing:
        _miss(runs[number])

    here = [each for each in _findings(tmp_path, runs) if each.rule == "mlperf.missed"]

    assert [each.found for each in here] == found


def test_a_seed_logged_on_another_line_is_the_same_seed(runs: list[Lines], tmp_path: Path) -> None:
    value("seed", 1000.0)(runs[4])
    metadata("seed", lineno=99)(runs[4])
    time("seed", 1)(runs[4])

    assert [each.rule for each in _findings(tmp_path, runs)] == ["mlperf.distinct_seeds"]


_VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@given(
    st.lists(
        st.lists(
            st.tuples(
                st.sampled_from(["seed", "global_batch_size", "opt_name", "run_start", "run_stop"]),
                _VALUES,
            ),
            max_size=4,
        ),
        max_size=4,
    )
)
def test_no_result_makes_a_strict_rule_raise(
    tmp_path_factory: pytest.TempPathFactory, contents: list[list[tuple[str, object]]]
) -> None:
    folder = tmp_path_factory.mktemp("any")

    assert _findings(folder, [[line(*each) for each in content] for content in contents])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "invalid JSON"),
        ("[1.1]", "object"),
        ("{}", "a scaling_factor of None"),
        ('{"scaling_factor": "1.1"}', "a scaling_factor of '1.1'"),
        ('{"scaling_factor": true}', "a scaling_factor of True"),
        ('{"scaling_factor": 0.9}', "a scaling_factor of 0.9"),
        ('{"scaling_factor": NaN}', "NaN"),
        ('{"scaling_factor": 1e999}', ""),
        ('{"scaling_factor": 1.1, "scaling_factor": 1}', "duplicate"),
        ("[" * 10_000, "deep"),
        ("\xff\xfe", ""),
    ],
)
def test_a_scaling_file_that_is_malformed_is_found(tmp_path: Path, text: str, found: str) -> None:
    path = write_submission(tmp_path) / ROUND_RESULT / "scaling.json"
    for good in ('{"scaling_factor":1.0037}', '{"scaling_factor": 1}'):
        path.write_text(good)
        assert round_findings(tmp_path) == []
    path.write_text(text, encoding="latin-1")

    (finding,) = round_findings(tmp_path)

    assert (finding.rule, finding.severity) == ("mlperf.scaling_file", ERROR)
    assert finding.path == f"{ROUND_RESULT}/scaling.json"
    assert found in finding.sentence
