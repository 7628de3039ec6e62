"""A claim of scaling is held to its base, its software, its metric and its figures."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.log.package import read_result
from hybridperf.rules import scaling_rules
from hybridperf.rules.check import check_path, check_result
from hybridperf.score.scaling import CLAIM, Scaling, scale
from tests.packages import edit_manifest, log_path, write_result
from tests.scaling_results import TIMES_S, claim, on_cores, write_on, write_pair

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hybridperf.findings import Finding
    from hybridperf.log.package import Package

    Edit = Callable[[dict[str, Any]], object]


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Package, Package]:
    return write_pair(tmp_path)


def _found(package: Package) -> list[Finding]:
    return [
        finding
        for finding in check_result(read_result(package))
        if finding.rule.startswith("scaling.")
    ]


def _edit(package: Package, edit: Edit) -> None:
    facts = json.loads((package.folder / CLAIM).read_text())
    edit(facts)
    (package.folder / CLAIM).write_text(json.dumps(facts))


def test_a_claim_as_the_command_makes_it_keeps_the_rules(pair: tuple[Package, Package]) -> None:
    facts = claim(*pair)

    assert check_path(pair[0].root).findings == ()
    assert facts["base"]["system"] == "on-1"
    assert set(facts["base"]["logs"]) == {f"result_{number}.txt" for number in range(5)}
    assert facts["devices"] == [1, 2]
    assert set(facts["efficiency"]) == {
        "time_to_train",
        "end_to_end_throughput",
        "steady_throughput",
    }


def test_the_scaling_of_a_result_is_computed_once(
    pair: tuple[Package, Package], monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(*pair)
    computed = list[object]()

    def counted(*sides: Any, **how: Any) -> Scaling:
        computed.append(sides)
        return scale(*sides, **how)

    monkeypatch.setattr(scaling_rules, "scale", counted)

    assert _found(pair[1]) == []
    assert len(computed) == 1
    assert _found(pair[0]) == []  # which claims nothing
    assert len(computed) == 1


@pytest.mark.parametrize(
    ("edit", "rule", "expected", "found"),
    [
        (lambda facts: facts.update(format=2), "claim", "can be read", "format 2"),
        (lambda facts: facts.pop("base"), "claim", "can be read", "base None, which is no object"),
        (
            lambda facts: facts["base"].update(system="../../elsewhere"),
            "claim",
            "can be read",
            "a base ['acme', '../../elsewhere']",
        ),
        (lambda facts: facts["base"].update(logs={}), "claim", "can be read", "without hashes"),
        (lambda facts: facts.update(devices=[1, True]), "claim", "can be read", "[1, True]"),
        (lambda facts: facts.update(cause="luck"), "claim", "can be read", "cause 'luck'"),
        (
            lambda facts: facts["efficiency"]["time_to_train"].update(value=None),
            "claim",
            "can be read",
            "time_to_train without a value",
        ),
        (
            lambda facts: facts["efficiency"]["time_to_train"].update(low="0.7"),
            "claim",
            "can be read",
            "time_to_train of '0.7'",
        ),
        (lambda facts: facts["base"].update(system="gone"), "base", "acme/results/gone", "none"),
        (
            lambda facts: facts["base"]["logs"].update({"result_3.txt": "0" * 64}),
            "base",
            "acme/results/on-1",
            "result_3.txt differs",
        ),
        (
            lambda facts: facts["efficiency"].update(peak_throughput={"value": 0.99}),
            "metric",
            "a metric out of time_to_train, end_to_end_throughput, steady_throughput",
            "'peak_throughput'",
        ),
        (
            lambda facts: facts["efficiency"]["time_to_train"].update(value=0.94),
            "figure",
            "time_to_train 0.750000 (",
            "0.940000 (",
        ),
        (
            lambda facts: facts["efficiency"]["time_to_train"].update(high=None),
            "figure",
            "time_to_train 0.750000 (",
            "to unknown)",
        ),
        (lambda facts: facts.update(devices=[1, 4]), "figure", "from 1 to 2 devices", "1 to 4"),
        (lambda facts: facts.update(kind="weak"), "figure", "strong scaling", "'weak'"),
        (lambda facts: facts.update(efficiency={}), "figure", "a figure by some metric", "none"),
        (
            lambda facts: facts["base"].update(system="on-2"),
            "figure",
            "a scaling: more devices than the 2 of the base",
            "2",
        ),
    ],
)  # fmt: skip
def test_what_does_not_follow_is_found(
    pair: tuple[Package, Package], edit: Edit, rule: str, expected: str, found: str
) -> None:
    claim(*pair)
    _edit(pair[1], edit)

    findings = [each for each in _found(pair[1]) if each.rule == f"scaling.{rule}"]

    assert len(findings) == 1
    assert expected in findings[0].expected
    assert found in findings[0].found
    assert findings[0].path == f"acme/results/on-2/resnet-laptop/{CLAIM}"
    assert findings[0].sentence.isprintable()
    assert not check_path(pair[0].root).valid


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": 1, "format": 1}', "\0", "9" * 2**21])
def test_a_claim_that_is_none_is_found(pair: tuple[Package, Package], text: str) -> None:
    (pair[1].folder / CLAIM).write_text(text)

    (finding,) = _found(pair[1])

    assert finding.rule == "scaling.claim"


def test_other_code_is_other_software(pair: tuple[Package, Package]) -> None:
    for number in range(5):
        code = {"version": "0.1.0", "suite_sha256": "a" * 64, "trainer_sha256": "e" * 64}
        edit_manifest(pair[1], number, code=code)
    claim(*pair)

    (finding,) = _found(pair[1])

    assert finding.rule == "scaling.software"
    assert finding.expected == f"trainer_sha256 {'b' * 40}, as in the base"
    assert finding.found == "e" * 40


@pytest.mark.parametrize(
    ("field", "value"),
    [("framework", "PyTorch 3.0"), ("host_processor_model_name", "Another One")],
)
def test_another_framework_or_device_is_found(tmp_path: Path, field: str, value: str) -> None:
    base = write_on(tmp_path, 1)
    other = on_cores(
        write_result(tmp_path, plan="dp=2", system="on-2", times_s=TIMES_S),
        2,
        **{field: value},
    )
    claim(base, other)

    (finding,) = _found(other)

    assert (finding.rule, finding.found) == ("scaling.software", value)


def test_a_base_that_has_changed_no_longer_bears_the_claim(pair: tuple[Package, Package]) -> None:
    claim(*pair)
    for number in (3, 4):
        log_path(pair[0], number).unlink()

    assert {finding.rule for finding in _found(pair[1])} == {"scaling.base", "scaling.figure"}


def test_a_metric_that_was_not_measured_is_found(tmp_path: Path) -> None:
    base = write_on(tmp_path, 1, times_s=[12.0] * 6)
    other = write_on(tmp_path, 2, times_s=[8.0] * 6, missed=[1, 2])
    facts = claim(base, other)
    assert "time_to_train" not in facts["efficiency"]
    _edit(other, lambda facts: facts["efficiency"].update(time_to_train={"value": 0.75}))

    (finding,) = _found(other)

    assert finding.rule == "scaling.metric"
    assert finding.expected.startswith("no figure by time_to_train: the logs of acme on-2")


def test_oversubscribed_and_super_linear_figures_may_not_be_claimed(tmp_path: Path) -> None:
    base = write_on(tmp_path, 1)
    figures = {"time_to_train": {"value": 1.5, "low": 1.4, "high": 1.6}}
    crowded = on_cores(write_result(tmp_path, plan="dp=4", system="crowded", times_s=TIMES_S), 2)
    fast = write_on(tmp_path, 2, times_s=[2.0] * 5)
    for package, why in [
        (crowded, "no figure by time_to_train: oversubscribed, 4 ranks share 2 cores"),
        (fast, "no figure by time_to_train: super-linear, the split shows gains by training"),
    ]:
        claim(base, package, efficiency=figures)
        (finding,) = _found(package)
        assert (finding.rule, finding.expected) == ("scaling.figure", why)
    claim(base, fast)
    _edit(fast, lambda facts: facts.update(cause="training", efficiency=figures))
    assert "time_to_train 3.0" in _found(fast)[0].expected
