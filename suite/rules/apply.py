"""Apply rules to a subject, and turn what they find into findings."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

from suite.findings import Finding
from suite.rules.rule import RULES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from suite.rules.rule import Deviation, Rule, Scope

__all__ = ["apply", "apply_all", "of_scope"]

_MOST_SHOWN: Final = 100  # findings of a rule in a subject, before the others are only counted


def of_scope(
    table: Mapping[str, dict[str, Any]], scope: Scope
) -> list[tuple[Rule, dict[str, Any]]]:
    """Return the rules of a ruleset's ``table``, and their parameters, that have ``scope``."""
    return [
        (RULES[name], parameters)
        for name, parameters in table.items()
        if RULES[name].scope == scope
    ]


def apply_all(
    rules: Iterable[tuple[Rule, dict[str, Any]]],
    subject: object,
    *benchmark: object,
    path: str,
    runs: Mapping[int, str] | None = None,
) -> Iterator[Finding]:
    """Yield what ``rules`` find in ``subject``, each as `apply` does."""
    for rule, parameters in rules:
        yield from apply(rule, subject, *benchmark, parameters=parameters, path=path, runs=runs)


def apply(
    rule: Rule,
    subject: object,
    *benchmark: object,
    parameters: Mapping[str, Any],
    path: str,
    runs: Mapping[int, str] | None = None,
) -> Iterator[Finding]:
    """Yield what ``rule`` finds in ``subject``, whose place is ``path``.

    ``runs`` gives the paths of a result's attempts by number.
    """
    deviations: Iterable[Deviation] = rule.check(subject, *benchmark, **parameters)
    shown = iter(deviations)
    for deviation in itertools.islice(shown, _MOST_SHOWN):
        place = deviation.path or (path if deviation.run is None else (runs or {})[deviation.run])
        yield Finding(
            rule.id,
            deviation.expected,
            deviation.found,
            rule.remedy,
            place,
            deviation.line,
            deviation.severity or rule.severity,
        )
    if more := sum(1 for _ in shown):
        yield Finding(
            rule.id,
            f"at most {_MOST_SHOWN} findings of this rule",
            f"{more} more that are not shown",
            rule.remedy,
            path,
            severity=rule.severity,
        )
