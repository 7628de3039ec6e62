"""Keep what is found within bounds, however much is wrong."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from suite.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["FINDINGS_CAP", "bounded"]

FINDINGS_CAP: Final = 10_000  # rounds v2.0 and v2.1 have 1,900 in mode strict


def bounded(findings: Iterable[Finding], place: str) -> Iterator[Finding]:
    """Yield the first `FINDINGS_CAP` of ``findings``, and then how many more each rule has.

    The first error of every file is always among them, so that no file passes for valid.
    ``place`` is the path of what was checked.
    """
    wrong = set[str]()
    kept = 0
    more = Counter[tuple[str, Severity]]()
    remedies: dict[str, str] = {}
    for finding in findings:
        first_error = finding.severity is Severity.ERROR and finding.path not in wrong
        if kept < FINDINGS_CAP or first_error:
            kept += 1
            if first_error:
                wrong.add(finding.path)
            yield finding
        else:
            more[finding.rule, finding.severity] += 1
            remedies.setdefault(finding.rule, finding.remedy)
    for (rule, severity), count in more.items():
        expected = f"at most {FINDINGS_CAP} findings in all"
        found = f"at least {count} more of this rule that are not shown"
        yield Finding(rule, expected, found, remedies[rule], place, severity=severity)
