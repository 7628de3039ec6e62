"""Apply rules to a subject, and turn what they find into findings."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

from suite.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from suite.rules.rule import Deviation, Rule

__all__ = ["apply"]

_MOST_SHOWN: Final = 100  # findings of a rule in a subject, before the others are only counted


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
