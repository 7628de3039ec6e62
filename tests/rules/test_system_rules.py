"""Rules of system descriptions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybridperf.findings import Severity
from hybridperf.rules.check import check_path, check_submissions
from hybridperf.rules.mlperf.ruleset import load_ruleset
from tests.packages import description as own_description
from tests.packages import write_result
from tests.rules.mlperf.strict_logs import RULESET
from tests.rules.round_folder import (
    ORG,
    RESULT,
    SYSTEM,
    SYSTEM_FILE,
    description,
    findings,
    write_submission,
)

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.findings import Finding

ERROR, WARNING = Severity.ERROR, Severity.WARNING


@pytest.mark.parametrize(
    "facts",
    [
        {"number_of_nodes": 128},
        {"number_of_nodes": 128.0},
        {"number_of_nodes": "128.0"},
        {"division": "Closed"},
        {"status": "Available on-premise"},
        {"host_networking_topology": "N/A"},
        {"host_processor_core_count": "", "host_processor_vcpu_count": "96"},
        {"other_software_stack": {"python": "3.10"}},
        {"other_software_stack": ["python 3.10"]},
        {"submitter": "ACME"},
        {"host_processor_frequency": ""},
    ],
    ids=str,
)
def test_descriptions_as_submitters_write_them_have_no_findings(
    tmp_path: Path, facts: dict[str, object]
) -> None:
    assert findings(write_submission(tmp_path, **facts)) == []


@pytest.mark.parametrize(
    ("facts", "rule", "severity", "found"),
    [
        ({"framework": True}, "system.fields", ERROR, "True"),
        ({"framework": ["MXNet"]}, "system.fields", ERROR, "['MXNet']"),
        ({"hw_notes": None}, "system.fields", ERROR, "None"),
        (
            {"cooling": "", "framework": " "},
            "system.meaning",
            WARNING,
            "none in cooling, framework",
        ),
        ({"cooling": "TBD"}, "system.meaning", WARNING, "none in cooling"),
        ({"other_software_stack": {}}, "system.meaning", WARNING, "none in other_software_stack"),
        (
            {"host_processor_core_count": ""},
            "system.meaning",
            WARNING,
            "none in host_processor_core_count or host_processor_vcpu_count",
        ),
        ({"number_of_nodes": "many"}, "system.numbers", ERROR, "'many'"),
        ({"number_of_nodes": 0}, "system.numbers", ERROR, "0"),
        ({"accelerators_per_node": 7.5}, "system.numbers", ERROR, "7.5"),
        ({"accelerators_per_node": "2x 4"}, "system.numbers", ERROR, "'2x 4'"),
        ({"host_processor_core_count": "2x 32"}, "system.numbers", WARNING, "'2x 32'"),
        ({"status": "soon"}, "system.words", ERROR, "'soon'"),
        ({"submitter": "Acme Labs"}, "system.submitter", WARNING, "'Acme Labs'"),
        ({"number_of_nodes": "129"}, "system.counts", WARNING, "n128"),
        ({"accelerator_model_name": "N/A"}, "system.counts", WARNING, "'N/A' on 8 accelerators"),
    ],
    ids=str,
)
def test_what_is_wrong_with_a_description_is_found_by_one_rule(
    tmp_path: Path, facts: dict[str, object], rule: str, severity: Severity, found: str
) -> None:
    round_ = write_submission(tmp_path, **facts)
    if facts.get("number_of_nodes") == "129":
        for log in (round_ / RESULT).iterdir():
            log.write_text(log.read_text().replace("128xpod", "pod"))

    (finding,) = _beside_the_checker(round_)

    assert (finding.rule, finding.severity) == (rule, severity)
    assert found in finding.found
    assert finding.path == SYSTEM_FILE


def _beside_the_checker(round_: Path) -> list[Finding]:
    """Return the findings of mode strict, but for what the package checker finds too."""
    return [each for each in findings(round_) if not each.rule.startswith("checker.")]


def test_missing_fields_are_named_together(tmp_path: Path) -> None:
    round_ = write_submission(tmp_path)
    table = description()
    for field in ("cooling", "hw_notes", "sw_notes", "status", "operating_system", "framework"):
        del table[field]
    (round_ / SYSTEM_FILE).write_text(json.dumps(table))

    (finding,) = _beside_the_checker(round_)

    assert finding.rule == "system.fields"
    assert finding.severity is ERROR
    assert "and 2 more" in finding.found


def test_a_preview_may_leave_its_cores_open(tmp_path: Path) -> None:
    round_ = write_submission(tmp_path, status="preview", host_processor_core_count="")

    assert {finding.rule for finding in findings(round_)} == {"place.status"}


def test_a_host_without_accelerators_needs_no_words_about_them(tmp_path: Path) -> None:
    facts: dict[str, object] = {"accelerators_per_node": "0", "accelerator_memory_capacity": ""}

    assert findings(write_submission(tmp_path, accelerator_model_name="N/A", **facts)) == []


@pytest.mark.parametrize(
    ("name", "nodes", "each", "agrees"),
    [
        ("dgxa100_n8_ngc22.04", 8, 8, True),
        ("dgxa100_n8_ngc22.04", 4, 8, False),
        ("16-nodes-SPR", 16, 0, True),
        ("8_node_64_A100", 8, 8, True),
        ("XL675d_20N_mxnet", 20, 8, True),
        ("XL675d_20N_mxnet", 2, 8, False),
        ("8xA100_80GB", 1, 8, True),
        ("16xXE8545x4A100", 16, 4, True),
        ("16xXE8545x4A100", 3, 4, False),
        ("7920T_2xA5000", 1, 2, True),
        ("ND96amsr_A100_v4", 1, 8, True),
    ],
)
def test_a_name_counts_as_its_description_does(
    tmp_path: Path, name: str, nodes: int, each: int, agrees: bool
) -> None:
    facts = {"number_of_nodes": nodes, "accelerators_per_node": each}
    model = "NVIDIA H100" if each else "N/A"
    round_ = write_submission(tmp_path, accelerator_model_name=model, **facts)
    (round_ / ORG / "results" / SYSTEM).rename(round_ / ORG / "results" / name)
    (round_ / SYSTEM_FILE).rename(round_ / ORG / "systems" / f"{name}.json")

    rules = [finding.rule for finding in findings(round_)]

    assert ("system.counts" in rules) is not agrees


def test_our_own_descriptions_are_judged(tmp_path: Path) -> None:
    package = write_result(tmp_path)
    facts = own_description("acme", "laptop") | {"operating_system": "", "accelerators_per_node": 1}
    package.system_file.write_text(json.dumps(facts))

    rules = {finding.rule for finding in check_path(tmp_path).findings}

    assert rules == {"result.system", "system.meaning", "system.counts"}


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
_FIELDS = st.sampled_from(load_ruleset(RULESET).rules["system.fields"]["fields"])


@settings(
    max_examples=200,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(facts=st.dictionaries(_FIELDS, _VALUES, max_size=6))
def test_no_description_stops_the_checker(tmp_path: Path, facts: dict[str, object]) -> None:
    from hybridperf.log.package import Package

    package = Package(tmp_path, ORG, SYSTEM, "resnet")
    package.system_file.parent.mkdir(parents=True, exist_ok=True)
    package.system_file.write_text(json.dumps(description(**facts)))

    for finding in check_submissions([package], load_ruleset(RULESET)):
        assert finding.sentence.isprintable()
        assert len(finding.sentence) < 2_000
