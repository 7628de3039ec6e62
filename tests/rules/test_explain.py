"""Every rule that a finding can name is explained."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pytest

import hybridperf
from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Severity
from hybridperf.rules.explain import explain, explain_all
from hybridperf.rules.mlperf.ruleset import known_rulesets
from hybridperf.rules.rule import READING, RULES, Scope
from hybridperf.rules.verdict import RULESET

if TYPE_CHECKING:
    from collections.abc import Iterator

ROUND = "mlperf-training-2.1.0"
_ID = re.compile(r"(?:log|run|result|system|mlperf|package|submission)\.[a-z_]+")
_ROOT = Path(hybridperf.__file__).parent


def _ids() -> Iterator[str]:
    """Yield what reads like the id of a rule wherever logs are read or judged."""
    folders = (_ROOT / "log", _ROOT / "rules")
    for path in [_ROOT / "findings.py", *(each for one in folders for each in one.rglob("*.py"))]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and _ID.fullmatch(str(node.value)):
                yield str(node.value)


IDS = sorted({*_ids(), *RULES} - set(get_args(Scope)))


def test_ids_are_collected() -> None:
    assert set(IDS) > {"log.file", "log.line", "mlperf.line", "system.file", "result.name"}
    assert not set(READING) & set(RULES)
    assert set(READING) <= set(IDS)


def test_every_rule_is_explained() -> None:
    for rule in IDS:
        found = explain(rule, RULESET)

        assert found.rule == rule
        assert found.severity in list(Severity)
        for text in (found.checks, found.source, found.remedy):
            assert text, rule
            assert text.isprintable(), rule
        assert found.checks.endswith("."), rule
        assert not found.remedy.endswith("."), rule
        assert json.loads(json.dumps(found.as_json(), allow_nan=False))["rule"] == rule


@pytest.mark.parametrize("ruleset", known_rulesets())
def test_a_ruleset_names_each_rule_once(ruleset: str) -> None:
    found = explain_all(ruleset)

    assert len({each.rule for each in found}) == len(found)
    assert {each.ruleset for each in found} == {ruleset}
    modes = {"strict"} if ruleset == RULESET else {"strict", "package", "as-published"}
    assert {each.mode for each in found} == modes


def test_a_rule_is_explained_as_the_ruleset_asks_for_it() -> None:
    assert explain("log.initialisation", RULESET).parameters == {"most_gap_s": 1.0}
    assert explain("log.file", ROUND).ruleset == ROUND
    assert explain("log.chain", ROUND).ruleset == RULESET  # where only another has it


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("log.chian", "found 'log.chian'; did you mean log.chain"),
        ("\x1b[31m", "found '\\x1b[31m'; 'hybridperf check --rules' shows all."),
        ("", "found ''; 'hybridperf check --rules' shows all."),
    ],
)
def test_a_rule_that_is_none_is_refused(name: str, sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        explain(name, RULESET)

    assert sentence in str(refused.value)
    assert refused.value.exit_code is ExitCode.USAGE
