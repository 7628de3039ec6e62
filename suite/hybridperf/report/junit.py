"""Write verdicts as JUnit XML for CI systems."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

from hybridperf.findings import Severity, visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridperf.findings import Finding
    from hybridperf.rules.check import Verdict

__all__ = ["junit_xml"]


def junit_xml(verdict: Verdict) -> str:
    """Return JUnit XML with one test suite per result and one test case per log.

    A test case fails if a finding about its log is an error; warnings are its output. Each other
    file or folder with findings has its own test case.
    """
    cases: dict[str, list[Finding]] = {log: [] for log in verdict.logs}
    for finding in verdict.findings:
        cases.setdefault(finding.path, []).append(finding)
    logs = set(verdict.logs)
    groups: dict[str, list[tuple[str, list[Finding]]]] = {}
    for path, findings in cases.items():
        folder, _, name = path.rpartition("/")
        place, case = (folder or ".", name) if path in logs else (path, "as a whole")
        groups.setdefault(place, []).append((case, findings))
    name = f"hybridperf check by {verdict.ruleset}, {verdict.mode}"
    root = ET.Element("testsuites", name=visible(name))
    for place, group in groups.items():
        root.append(_suite(place, group))
    _count(root, [findings for group in groups.values() for _, findings in group])
    ET.indent(root)
    # Character references for non-ASCII characters make the output independent of the locale.
    text: bytes = ET.tostring(root, encoding="us-ascii", xml_declaration=True)
    return text.decode()


def _suite(place: str, group: Sequence[tuple[str, list[Finding]]]) -> ET.Element:
    suite = ET.Element("testsuite", name=visible(place))
    for name, findings in group:
        case = ET.SubElement(suite, "testcase", classname=visible(place), name=visible(name))
        errors = [each for each in findings if each.severity is Severity.ERROR]
        warnings = [each for each in findings if each.severity is not Severity.ERROR]
        if errors:
            first = errors[0]
            failure = ET.SubElement(
                case, "failure", type=visible(first.rule), message=first.sentence
            )
            failure.text = _lines(errors)
        if warnings:
            ET.SubElement(case, "system-out").text = _lines(warnings)
    _count(suite, [findings for _, findings in group])
    return suite


def _count(element: ET.Element, cases: Sequence[Sequence[Finding]]) -> None:
    failed = sum(any(each.severity is Severity.ERROR for each in findings) for findings in cases)
    element.set("tests", str(len(cases)))
    element.set("failures", str(failed))
    element.set("errors", "0")  # a checker that fails writes no XML


def _lines(findings: Sequence[Finding]) -> str:
    return "\n".join(visible(f"{each.severity} {each.rule} {each.sentence}") for each in findings)
