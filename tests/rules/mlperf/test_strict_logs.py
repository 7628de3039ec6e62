"""Every strict rule of a log finds what it names, and nothing else, in short logs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridperf.findings import Severity
from hybridperf.rules.mlperf.ruleset import load_ruleset
from hybridperf.rules.rule import RULES
from tests.rules.mlperf.strict_cases import (
    CASES,
    ERROR,
    HOUR_MS,
    OPEN,
    all_of,
    insert,
    points_of,
)
from tests.rules.mlperf.strict_logs import (
    RULESET,
    SGD,
    Lines,
    bert,
    drop,
    findings_of,
    repeat,
    resnet,
    time,
    value,
    without_evaluations,
)

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("lines", [bert(), resnet(), resnet(SGD)])
def test_a_log_as_the_rules_say_has_no_findings(lines: Lines, tmp_path: Path) -> None:
    assert findings_of(tmp_path / "log", lines) == []


def test_a_log_of_mlperf_cannot_say_that_our_harness_ended_it(tmp_path: Path) -> None:
    lines = bert()
    drop("eval_stop", 1)(lines)
    insert("run_stop", "hybridperf_ending", {"outcome": "failed"})(lines)

    assert {each.rule for each in findings_of(tmp_path / "log", lines)} == {"mlperf.intervals"}


BY_CLOCK = [
    (time("run_stop", -HOUR_MS), {"mlperf.clock", "mlperf.timed", "mlperf.time"}),
    (
        time("run_start", HOUR_MS // 4),
        {"mlperf.timed", "mlperf.time", "mlperf.untimed", "mlperf.clock"},
    ),
]


@pytest.mark.parametrize(("edit", "rule", "severity", "sentence"), CASES)
def test_what_is_wrong_with_bert_is_found_by_name(
    tmp_path: Path,
    edit: Callable[[Lines], object],
    rule: str,
    severity: Severity,
    sentence: str,
) -> None:
    lines = bert()
    edit(lines)

    here = [each for each in findings_of(tmp_path / "log", lines) if each.rule == rule]

    assert [each.severity for each in here if sentence in each.sentence] == [severity], here
    assert all(each.line or rule == "mlperf.seed" for each in here)


@pytest.mark.parametrize(
    ("optimizer", "edit", "rule", "sentence"),
    [
        ("lars", value("lars_opt_momentum", 0.5), "mlperf.hyperparameters", "equal to 0.9"),
        ("lars", value("lars_opt_momentum", None), "mlperf.hyperparameters", "found None"),
        ("lars", value("lars_opt_base_learning_rate", "x"), "mlperf.hyperparameters", "a number"),
        ("sgd", value("sgd_opt_momentum", 0.95), "mlperf.hyperparameters", "equal to 0.9"),
        (
            "sgd",
            value("sgd_opt_learning_rate_decay_poly_power", 1),
            "mlperf.hyperparameters",
            "equal to 2",
        ),
        (
            "sgd",
            value("opt_learning_rate_warmup_epochs", 2.5),
            "mlperf.hyperparameters",
            "a whole number of at least 0",
        ),
        (
            "sgd",
            value("sgd_opt_learning_rate_decay_steps", -1),
            "mlperf.hyperparameters",
            "a whole number of at least 0",
        ),
        ("lars", points_of(3, 7, 12), "mlperf.cadence", "found 5 up to the one at 12, and 1 of 3"),
        (
            "lars",
            points_of(5, 9, 13),
            "mlperf.cadence",
            "every 4 epochs, found 5 up to the one at 5",
        ),
        ("lars", value("train_samples", 9), "mlperf.train_samples", "train_samples = 1,281,167"),
        ("lars", value("eval_samples", 49_999), "mlperf.thoroughness", "at least 50,000"),
    ],
)
def test_what_is_wrong_with_resnet_is_found_by_name(
    tmp_path: Path, optimizer: str, edit: Callable[[Lines], object], rule: str, sentence: str
) -> None:
    lines = resnet(SGD) if optimizer == "sgd" else resnet()
    edit(lines)

    found = findings_of(tmp_path / "log", lines)

    assert {each.rule for each in found} == {rule}
    assert {each.severity for each in found} == {ERROR}
    assert any(sentence in each.sentence for each in found)


@pytest.mark.parametrize(
    ("lines", "edit"),
    [
        (resnet(), all_of([value("global_batch_size", 35_840), value("lars_opt_momentum", 0.94)])),
        (resnet(), points_of(4, 8, 12)),
        (resnet(), value("eval_samples", 50_016)),
        (resnet(), all_of([OPEN, value("lars_opt_momentum", 0.5), value("train_samples", 9)])),
        (bert(), value("eval_samples", 10_000.0)),
        (bert(), all_of([OPEN, drop("seed"), value("eval_samples", 500)])),
        (bert(), all_of([OPEN, value("eval_accuracy", 0.5, 3)])),
        (bert(), repeat("init_start")),
    ],
)
def test_what_the_rules_allow_is_allowed(
    lines: Lines, edit: Callable[[Lines], object], tmp_path: Path
) -> None:
    edit(lines)

    rules = {each.rule for each in findings_of(tmp_path / "log", lines)}

    assert rules <= {"mlperf.keys"}  # a repeated key, which is a warning as published


@pytest.mark.parametrize(
    ("accuracies", "rules"),
    [
        ((0.73, 0.5, 0.6, 0.1), {"mlperf.stop"}),
        ((0.1, 0.2, 0.3, 0.4), {"mlperf.stop", "mlperf.target"}),
    ],
)
def test_success_needs_the_last_evaluation_to_reach_the_target(
    accuracies: tuple[float, ...], rules: set[str], tmp_path: Path
) -> None:
    lines = bert()
    for nth, accuracy in enumerate(accuracies):
        value("eval_accuracy", accuracy, nth)(lines)

    found = findings_of(tmp_path / "log", lines)

    assert {each.rule for each in found if each.severity is ERROR} == rules
    expected = f"the last evaluation to be at least 0.72 and below 1.0, found {accuracies[-1]}"
    assert any(expected in each.sentence for each in found)


@pytest.mark.parametrize(
    ("samples", "count", "severity"),
    [
        (600_320, 4, None),
        (749_999, 4, None),
        (600_320, 3, Severity.ERROR),
        (299_999, 4, Severity.WARNING),
    ],
)
def test_where_epochs_count_nothing_the_number_of_evaluations_tells(
    samples: int, count: int, severity: Severity | None, tmp_path: Path
) -> None:
    lines = bert()
    points_of(1, 1, 1, 1)(lines)
    value("train_samples", samples)(lines)
    if count < 4:
        without_evaluations(*range(4 - count))(lines)

    here = [x for x in findings_of(tmp_path / "log", lines) if x.rule == "mlperf.cadence"]

    assert [each.severity for each in here] == ([] if severity is None else [severity])


@pytest.mark.parametrize(("edit", "rules"), BY_CLOCK)
def test_a_clock_that_was_set_is_found_wherever_it_shows(
    edit: Callable[[Lines], object], rules: set[str], tmp_path: Path
) -> None:
    lines = bert()
    edit(lines)

    assert {each.rule for each in findings_of(tmp_path / "log", lines)} <= rules


def test_every_strict_rule_is_documented_with_a_source_and_a_remedy() -> None:
    page = (Path(__file__).parents[3] / "docs" / "rules.md").read_text()
    for name in load_ruleset(RULESET).rules:
        assert f"`{name}`" in page or not name.startswith("mlperf.")
        assert RULES[name].source
        assert RULES[name].remedy[0].islower()
        assert not RULES[name].remedy.endswith(".")


_JSON: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9)
    | st.sampled_from(["bert", "resnet", "closed", "open", "lars", "sgd", "success", 448, 10**29]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=9,
)
_KEYS = sorted({each["key"] for each in bert() + resnet() + resnet(SGD)})
_NAMES = ["epoch_num", "first_epoch_num", "epoch_count", "status", "file", "lineno"]


@given(
    st.sampled_from([bert(), resnet()]),
    st.lists(
        st.fixed_dictionaries(
            {"key": st.sampled_from(_KEYS), "time_ms": st.integers(-(2**62), 2**62)},
            optional={
                "value": _JSON,
                "event_type": _JSON,
                "metadata": st.dictionaries(st.sampled_from(_NAMES), _JSON) | _JSON,
            },
        )
    ),
    st.integers(0, 9),
)
def test_no_log_makes_a_strict_rule_raise(
    tmp_path_factory: pytest.TempPathFactory, good: Lines, lines: Lines, every: int
) -> None:
    kept = [each for nth, each in enumerate(good) if every and nth % every]
    path = tmp_path_factory.mktemp("any") / "log"

    for found in findings_of(path, [*kept[:20], *lines, *kept[20:]]):
        assert found.sentence
        assert found.remedy
