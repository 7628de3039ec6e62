"""The examples of rules: each breaks its rule, and does not once it is mended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hybridperf.rules.explain import examples, explain, explain_all
from hybridperf.rules.mlperf.ruleset import load_ruleset
from hybridperf.rules.rule import READING, RULES
from hybridperf.rules.verdict import RULESET as OURS
from tests.rules.examples import is_found
from tests.rules.mlperf.strict_logs import RULESET

if TYPE_CHECKING:
    from pathlib import Path


def _is_ours(rule: str) -> bool:
    """Tell whether the example of ``rule`` is of a result of our own."""
    if rule in READING:
        return READING[rule].ours and rule != "system.file"
    if RULES[rule].scope == "submission":
        return rule == "package.sums"
    return rule in load_ruleset(OURS).rules


@pytest.mark.parametrize("rule", sorted(examples()))
def test_an_example_breaks_its_rule_until_it_is_mended(tmp_path: Path, rule: str) -> None:
    example, ours = examples()[rule], _is_ours(rule)

    assert is_found(rule, example, ours=ours, mended=False, root=tmp_path / "broken")
    assert not is_found(rule, example, ours=ours, mended=True, root=tmp_path / "mended")


def test_every_rule_has_an_example() -> None:
    assert set(examples()) == {*RULES, *READING}
    for ruleset in (OURS, RULESET):
        for each in explain_all(ruleset):
            assert each.example_of
            assert each.breaks != each.mended or "runs" in each.example_of


def test_an_example_is_explained_with_its_rule() -> None:
    said = explain("mlperf.stop", RULESET)
    assert said.as_json()["breaks"] == examples()["mlperf.stop"].breaks
    missed = explain("result.missed", OURS)
    assert missed.example_of == "the log of 2 runs, mended in one of them"
    assert explain("package.code", RULESET).breaks == ""
