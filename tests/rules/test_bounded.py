from __future__ import annotations

from hybridperf.findings import Finding, Severity
from hybridperf.rules.rule import FINDINGS_CAP, bounded


def _finding(path: str, rule: str = "some.rule", severity: Severity = Severity.ERROR) -> Finding:
    return Finding(rule, "this", "that", "mend it", path, severity=severity)


def test_few_findings_stay_as_they_are() -> None:
    findings = [_finding("a"), _finding("a"), _finding("b", severity=Severity.WARNING)]

    assert list(bounded(findings, "round")) == findings


def test_what_is_above_the_cap_is_counted_and_no_file_passes_for_valid() -> None:
    flood = [_finding("a") for _ in range(FINDINGS_CAP + 5)]
    warnings = [_finding("b", severity=Severity.WARNING) for _ in range(3)]
    late = [_finding("c"), _finding("c", rule="another.rule")]

    kept = list(bounded([*flood, *warnings, *late], "round"))

    assert kept[: FINDINGS_CAP + 1] == [*flood[:FINDINGS_CAP], late[0]]
    assert [(each.rule, each.found.split()[2], each.severity) for each in kept[-3:]] == [
        ("some.rule", "5", Severity.ERROR),
        ("some.rule", "3", Severity.WARNING),
        ("another.rule", "1", Severity.ERROR),
    ]
    assert {each.path for each in kept[-3:]} == {"round"}
    assert len(kept) == FINDINGS_CAP + 4


def test_nothing_is_held_back_until_the_end() -> None:
    endless = (_finding(f"log {number}") for number in iter(int, 1))

    assert next(bounded(endless, "round")).path == "log 0"
