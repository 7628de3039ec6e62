from __future__ import annotations

import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from hybridperf.findings import Finding, Severity
from hybridperf.report.junit import junit_xml
from hybridperf.rules.verdict import Verdict

FOLDER = "acme/results/eight/bert"
LOGS = (f"{FOLDER}/result_0.txt", f"{FOLDER}/result_1.txt", "acme/results/four/bert/result_0.txt")


def _finding(path: str, rule: str = "log.keys", **how: Severity) -> Finding:
    return Finding(rule, "seed <1>", 'found "none" & \x1b[31m', "log it", path, 7, **how)


def _junit(*findings: Finding) -> ET.Element:
    return ET.fromstring(junit_xml(Verdict(".", LOGS, findings)))


def test_a_result_is_a_suite_and_a_log_a_case() -> None:
    root = _junit()

    assert root.tag == "testsuites"
    assert [suite.get("name") for suite in root] == [FOLDER, "acme/results/four/bert"]
    assert [case.get("name") for case in root.iter("testcase")] == [
        "result_0.txt",
        "result_1.txt",
        "result_0.txt",
    ]
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("3", "0", "0")


def test_a_log_with_an_error_fails_and_says_all_of_them() -> None:
    root = _junit(_finding(LOGS[1]), _finding(LOGS[1], "log.time"))

    assert [suite.get("failures") for suite in root] == ["1", "0"]
    (failure,) = root.iter("failure")
    assert failure.get("type") == "log.keys"
    sentence = f'{LOGS[1]}:7: expected seed <1>, found found "none" & \\x1b[31m; log it.'
    assert failure.get("message") == sentence
    assert failure.text == f"error log.keys {sentence}\nerror log.time {sentence}"


def test_warnings_are_told_and_fail_nothing() -> None:
    root = _junit(_finding(LOGS[0], severity=Severity.WARNING))

    assert root.get("failures") == "0"
    assert [out.text for out in root.iter("system-out")] == [
        f'warning log.keys {LOGS[0]}:7: expected seed <1>, found found "none" & \\x1b[31m; log it.'
    ]


def test_what_is_about_no_log_is_a_case_of_its_own() -> None:
    root = _junit(_finding(FOLDER), _finding("acme/systems/eight.json"), _finding(""))

    cases = [(case.get("classname"), case.get("name")) for case in root.iter("testcase")]
    assert (FOLDER, "as a whole") in cases
    assert ("acme/systems/eight.json", "as a whole") in cases
    assert (root.get("tests"), root.get("failures")) == ("6", "3")
    assert [suite.get("tests") for suite in root][:2] == ["3", "1"]


def test_a_log_alone_has_a_suite_too() -> None:
    root = ET.fromstring(junit_xml(Verdict("log.txt", ("log.txt",), ())))

    assert [(suite.get("name"), suite[0].get("name")) for suite in root] == [(".", "log.txt")]


_TEXT = st.text(st.characters(), max_size=20)  # surrogates, controls, and what is no character


@given(_TEXT, _TEXT, _TEXT, _TEXT)
def test_it_is_xml_whatever_is_in_it(path: str, rule: str, expected: str, found: str) -> None:
    finding = Finding(rule, expected, found, "mend it", path)

    text = junit_xml(Verdict(".", (path,), (finding,), found))

    assert text.isascii()
    ET.fromstring(text)
