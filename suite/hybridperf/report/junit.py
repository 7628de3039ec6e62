"""Write verdicts as JUnit XML for CI systems."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Final

from hybridperf.errors import ExitCode
from hybridperf.findings import Finding, Severity, visible
from hybridperf.rules.verdict import Outcome
from hybridperf.score.validity import Judgement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridperf.rules.verdict import ResultVerdict, Verdict

__all__ = ["junit_xml"]

_MOST_CHARACTERS: Final = 300  #: of the reason of a judgement
_WHOLE: Final = "as a whole"  #: the case of findings that are about no log


def junit_xml(verdict: Verdict) -> str:
    """Return JUnit XML with one test suite per result and one test case per log.

    A test case fails if a finding about its log is an error; warnings are its output. Each other
    file or folder with findings has its own test case, and so has a result that is broken as a
    whole. What was not judged is skipped, and so are provisional results and results that did not
    converge, which the exit status tells.
    """
    cases: dict[str, list[Finding]] = {log: [] for log in verdict.logs}
    for finding in verdict.findings:
        cases.setdefault(finding.path, []).append(finding)
    for result in verdict.results:
        name = result.package.name
        if result.status() is ExitCode.INVALID and not _has_error(cases.get(name)):
            cases.setdefault(name, []).append(_counted(result))
    logs = set(verdict.logs)
    skipped = _skipped(verdict)
    groups: dict[str, list[tuple[str, list[Finding]]]] = {}
    for path, findings in cases.items():
        folder, _, name = path.rpartition("/")
        place, case = (folder or ".", name) if path in logs else (path, _WHOLE)
        groups.setdefault(place, []).append((case, findings))
    name = f"hybridperf check by {verdict.ruleset}, {verdict.mode}"
    root = ET.Element("testsuites", name=visible(name))
    for place, group in groups.items():
        root.append(_suite(place, group, skipped))
    _count(root)
    ET.indent(root)
    # Character references for non-ASCII characters make the output independent of the locale.
    text: bytes = ET.tostring(root, encoding="us-ascii", xml_declaration=True)
    return text.decode()


def _has_error(findings: Sequence[Finding] | None) -> bool:
    return any(each.severity is Severity.ERROR for each in findings or ())


def _counted(result: ResultVerdict) -> Finding:
    """Return a finding with the reason why a result is broken as a whole."""
    remedy = "repeat the invalid runs, and make the missing ones"
    found = result.why[:_MOST_CHARACTERS]
    return Finding(
        "result.count",
        "the number of valid runs that the rules require",
        found,
        remedy,
        result.package.name,
    )


def _skipped(verdict: Verdict) -> dict[str, str]:
    """Return the reason by log for logs that neither pass nor fail."""
    skipped = {}
    for result in verdict.results:
        unfinished = result.judgement in {Judgement.MISSED, Judgement.PROVISIONAL}
        if unfinished and result.status() is not ExitCode.INVALID:
            why = visible(result.why)[:_MOST_CHARACTERS]
            skipped[f"{result.package.name}/{_WHOLE}"] = f"{result.judgement}: {why}"
        for log in result.logs:
            if log.outcome is Outcome.INVALID and result.judgement is Judgement.VALID:
                skipped[log.path] = "counts as the slowest run of a valid result"
    for log in verdict.all_logs:
        if log.outcome is Outcome.NOT_JUDGED:
            skipped[log.path] = "not judged: the ruleset has no rules for it"
    return skipped


def _suite(
    place: str, group: Sequence[tuple[str, list[Finding]]], skipped: dict[str, str]
) -> ET.Element:
    suite = ET.Element("testsuite", name=visible(place))
    for name, findings in group:
        case = ET.SubElement(suite, "testcase", classname=visible(place), name=visible(name))
        errors = [each for each in findings if each.severity is Severity.ERROR]
        warnings = [each for each in findings if each.severity is not Severity.ERROR]
        if (path := f"{place}/{name}" if place != "." else name) in skipped:
            ET.SubElement(case, "skipped", message=skipped[path])
            warnings = findings
        elif errors:
            first = errors[0]
            failure = ET.SubElement(
                case, "failure", type=visible(first.rule), message=first.sentence
            )
            failure.text = _lines(errors)
        if warnings:
            ET.SubElement(case, "system-out").text = _lines(warnings)
    _count(suite)
    return suite


def _count(element: ET.Element) -> None:
    element.set("tests", str(sum(1 for _ in element.iter("testcase"))))
    element.set("failures", str(sum(1 for _ in element.iter("failure"))))
    element.set("skipped", str(sum(1 for _ in element.iter("skipped"))))
    element.set("errors", "0")  # a checker that fails writes no XML


def _lines(findings: Sequence[Finding]) -> str:
    return "\n".join(visible(f"{each.severity} {each.rule} {each.sentence}") for each in findings)
