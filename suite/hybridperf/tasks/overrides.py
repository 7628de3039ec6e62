"""Overrides of a task's hyperparameters, and their validation against the division's rules."""

from __future__ import annotations

import dataclasses
import tomllib
from typing import TYPE_CHECKING, Any

from hybridperf.errors import UserError
from hybridperf.findings import Finding
from hybridperf.spelling import nearest
from hybridperf.tasks.schema import build
from hybridperf.tasks.task import Division, Optimizer, Task, Training, out_of_bounds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "apply_overrides",
    "changed_hyperparameters",
    "default_hyperparameters",
    "hyperparameters",
    "judge_division",
    "parse_overrides",
]

_SECTIONS: dict[str, type[Any]] = {"training": Training, "optimizer": Optimizer}


def hyperparameters(task: Task) -> dict[str, object]:
    """Return every hyperparameter of ``task`` by dotted key, such as ``optimizer.lr``."""
    return {
        f"{section}.{key}": value
        for section in _SECTIONS
        for key, value in dataclasses.asdict(getattr(task, section)).items()
    }


def default_hyperparameters() -> dict[str, object]:
    """Return the default hyperparameters by dotted key, for older logs that omit them."""
    return {
        f"{section}.{field.name}": field.default
        for section, cls in _SECTIONS.items()
        for field in dataclasses.fields(cls)
        if field.default is not dataclasses.MISSING
    }


def parse_overrides(task: Task, texts: Iterable[str]) -> dict[str, object]:
    """Parse ``key=value`` texts, with keys of `hyperparameters` and values in TOML or bare words.

    Raises:
        UserError: exit status 2 if a text has no ``=`` or an unknown key.
    """
    known = hyperparameters(task)
    overrides: dict[str, object] = {}
    for text in texts:
        key, equals, value = (piece.strip() for piece in text.partition("="))
        if not equals:
            raise _refuse(text, "key=value", repr(text), "write --set optimizer.lr=0.1")
        if key not in known:
            names = {each.rpartition(".")[2]: each for each in known}
            likely = [names[name] for name in nearest(key.rpartition(".")[2], names)]
            hint = f"did you mean {likely[0]}? " if likely else ""
            hint += "'hybridperf list --json' shows the keys"
            raise _refuse(text, f"a hyperparameter of {task.name}", repr(key), hint)
        try:
            overrides[key] = tomllib.loads(f"value = {value}")["value"]
        except ValueError:
            overrides[key] = value  # a bare word is a string
    return overrides


def apply_overrides(task: Task, overrides: Mapping[str, object]) -> Task:
    """Return ``task`` with the hyperparameters in ``overrides`` changed.

    Raises:
        UserError: exit status 2 if a value has the wrong type or is out of bounds.
    """
    sections = {name: dataclasses.asdict(getattr(task, name)) for name in _SECTIONS}
    for key, value in overrides.items():
        section, _, name = key.partition(".")
        sections[section][name] = value
    changed = dataclasses.replace(
        task,
        **{
            name: build(cls, sections[name], path="--set", at=name)
            for name, cls in _SECTIONS.items()
        },
    )
    for expected, found in out_of_bounds(changed):
        raise _refuse(" ".join(overrides), expected, found, "choose another value")
    return changed


def changed_hyperparameters(task: Task, reference: Task) -> dict[str, object]:
    """Return the hyperparameters of ``task`` that differ from ``reference``."""
    before = hyperparameters(reference)
    return {key: value for key, value in hyperparameters(task).items() if value != before[key]}


def judge_division(task: Task, reference: Task, division: Division) -> list[Finding]:
    """Return a finding for each change from ``reference`` that ``division`` does not allow."""
    if division == "open":
        return []
    findings = []
    for key, value in changed_hyperparameters(task, reference).items():
        bound = reference.closed.get(key)
        if bound is None:
            expected = f"{key} = {hyperparameters(reference)[key]!r}, fixed in the closed division"
        elif isinstance(value, int | float) and bound.admits(float(value)):
            continue
        else:
            expected = f"{key} to be {bound} in the closed division"
        findings.append(
            Finding(
                "division.hyperparameter",
                expected,
                repr(value),
                "keep to the bound, or enter the open division with --division open",
                path=reference.name,
            )
        )
    return findings


def _refuse(text: str, expected: str, found: str, remedy: str) -> UserError:
    return UserError.of("task.override", expected, found, remedy, path=f"--set {text}")
