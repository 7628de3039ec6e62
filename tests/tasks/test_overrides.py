from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING

import pytest

from hybridperf.errors import ExitCode, UserError
from hybridperf.tasks.overrides import (
    apply_overrides,
    changed_hyperparameters,
    default_hyperparameters,
    hyperparameters,
    judge_division,
    parse_overrides,
)
from hybridperf.tasks.registry import find_task, task_path

if TYPE_CHECKING:
    from hybridperf.tasks.task import Task


@pytest.fixture
def task() -> Task:
    return find_task("resnet/laptop")


def _changed(task: Task, *texts: str) -> Task:
    return apply_overrides(task, parse_overrides(task, texts))


def test_hyperparameters_have_dotted_keys(task: Task) -> None:
    table = hyperparameters(task)

    assert table["optimizer.lr"] == task.optimizer.lr
    assert table["training.global_batch_size"] == task.training.global_batch_size
    assert {key.partition(".")[0] for key in table} == {"training", "optimizer"}


def test_default_hyperparameters_are_those_a_task_may_omit(task: Task) -> None:
    """Logs written before a hyperparameter could be stated are judged by it."""
    defaults = default_hyperparameters()
    table = tomllib.loads(task_path("resnet/laptop").read_text())

    unstated = {
        key: value
        for key, value in hyperparameters(task).items()
        if key.partition(".")[2] not in table[key.partition(".")[0]]
    }

    assert unstated["optimizer.schedule"] == "cosine"
    assert "optimizer.lr" not in defaults
    assert {key: defaults[key] for key in unstated} == unstated


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("optimizer.lr=0.05", "optimizer.lr", 0.05),
        (" optimizer.lr = 1 ", "optimizer.lr", 1),
        ("optimizer.nesterov=false", "optimizer.nesterov", False),
        ("optimizer.name=sgd", "optimizer.name", "sgd"),
        ('optimizer.name="sgd"', "optimizer.name", "sgd"),
        ("training.global_batch_size=64", "training.global_batch_size", 64),
        ("optimizer.lr=" + "9" * 5000, "optimizer.lr", "9" * 5000),
    ],
)
def test_values_are_toml_or_bare_words(task: Task, text: str, key: str, value: object) -> None:
    assert parse_overrides(task, [text]) == {key: value}


def test_the_last_override_of_a_key_is_used(task: Task) -> None:
    assert _changed(task, "optimizer.lr=0.2", "optimizer.lr=0.3").optimizer.lr == 0.3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("optimizer.lr", 'found \'optimizer.lr\'; write --set optimizer.lr=0.1.'),
        ("optimiser.lr=1", "found 'optimiser.lr'; did you mean optimizer.lr?"),
        ("lr=1", "expected a hyperparameter of resnet/laptop, found 'lr'; "),
        ("training.batch_size=1", "did you mean training.global_batch_size?"),
        ("quality.target=0.5", "a hyperparameter of resnet/laptop, found 'quality.target'"),
        ("@=1", "'hybridperf list --json' shows the keys."),
    ],
)  # fmt: skip
def test_an_unknown_key_is_refused_with_a_suggestion(task: Task, text: str, message: str) -> None:
    with pytest.raises(UserError) as refusal:
        parse_overrides(task, [text])

    assert refusal.value.exit_code is ExitCode.USAGE
    assert str(refusal.value).startswith(f"--set {text}: ")
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("optimizer.lr=fast", "a value of type float at 'optimizer.lr', found 'fast'"),
        ("optimizer.lr=nan", "a finite number at 'optimizer.lr', found nan"),
        ("optimizer.lr=1e999", "a finite number at 'optimizer.lr', found inf"),
        ("optimizer.lr=" + "9" * 400, "a value of type float at 'optimizer.lr', found 999"),
        ("optimizer.lr=true", "a value of type float at 'optimizer.lr', found True"),
        ("optimizer.decay_epochs=1.5", "a value of type int at 'optimizer.decay_epochs'"),
        ("optimizer.nesterov=1", "a value of type bool at 'optimizer.nesterov', found 1"),
        ("optimizer.name=adam", "one of sgd, adamw, lars, lamb at 'optimizer.name'"),
        ("training.global_batch_size=0", "training.global_batch_size from 1 to 1195, found 0;"),
        ("training.global_batch_size=-32", "training.global_batch_size from 1 to 1195"),
        ("training.global_batch_size=1196", "training.global_batch_size from 1 to 1195"),
        ("training.mixup=-0.1", "training.mixup from 0 to 100, found -0.1; choose another value."),
        ("training.mixup=1e9", "training.mixup from 0 to 100"),
        ("optimizer.warmup_epochs=-1", "optimizer.warmup_epochs at least 0, found -1"),
        ("optimizer.decay_epochs=0", "optimizer.decay_epochs at least 1, found 0"),
    ],
)
def test_a_value_of_the_wrong_type_or_size_is_refused(task: Task, text: str, message: str) -> None:
    with pytest.raises(UserError) as refusal:
        _changed(task, text)

    assert refusal.value.exit_code is ExitCode.USAGE
    assert message in str(refusal.value)


def test_mixup_requires_a_model_with_classes() -> None:
    with pytest.raises(UserError, match=r"training\.mixup = 0 where \[model\] has no whole number"):
        _changed(find_task("bert/laptop"), "training.mixup=0.2")


def test_other_hyperparameters_are_unchanged(task: Task) -> None:
    changed = _changed(task, "optimizer.lr=0.05", "training.global_batch_size=1195")

    assert changed_hyperparameters(changed, task) == {
        "optimizer.lr": 0.05,
        "training.global_batch_size": 1195,
    }
    assert changed.sha256 == task.sha256
    assert changed.quality == task.quality
    assert changed_hyperparameters(_changed(task, "optimizer.lr=0.1"), task) == {}


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("training.global_batch_size=1", True),
        ("optimizer.lr=0.001", True),
        ("optimizer.lr=0.0005", False),
        ("optimizer.lr=0.0", False),
        ("optimizer.lr=-0.1", False),
        ("optimizer.warmup_epochs=0", True),
        ("optimizer.decay_epochs=1", True),
        ("optimizer.weight_decay=1e-5", True),
        ("optimizer.weight_decay=0.9e-5", False),
        ("optimizer.weight_decay=1e-2", True),
        ("optimizer.weight_decay=1.01e-2", False),
        ("optimizer.momentum=0.8", False),
        ("optimizer.nesterov=false", False),
        ("training.label_smoothing=0.0", False),
        ("training.mixup=0.2", False),
    ],
)
def test_the_closed_division_allows_values_within_bounds_only(
    task: Task, text: str, allowed: bool
) -> None:
    changed = _changed(task, text)

    findings = judge_division(changed, task, "closed")

    assert (findings == []) is allowed
    assert all(finding.rule == "division.hyperparameter" for finding in findings)
    assert all(text.partition("=")[0] in finding.sentence for finding in findings)


def test_the_open_division_allows_any_hyperparameter(task: Task) -> None:
    changed = _changed(task, "optimizer.momentum=0.5", "optimizer.lr=12.34567")

    assert judge_division(changed, task, "open") == []
    assert len(judge_division(changed, task, "closed")) == 2
