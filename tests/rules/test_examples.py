"""The examples of rules: each breaks its rule, and does not once it is mended."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from hybridperf.findings import Severity
from hybridperf.rules import explain as explained
from hybridperf.rules.explain import examples, explain, explain_all
from hybridperf.rules.rule import RULES
from tests.rules.mlperf.strict_logs import RULESET, Lines, findings_of, resnet

LAST = {
    name
    for name, each in tomllib.loads(
        Path(explained.__file__).with_name("examples.toml").read_text()
    ).items()
    if each.get("last")
}


def _with(lines: Lines, mended: str, text: str, *, last: bool) -> list[Any]:
    """Return ``lines`` with what ``text`` says in place of the line that ``mended`` is about."""
    key = json.loads(mended)["key"]
    places = [place for place, each in enumerate(lines) if each["key"] == key]
    place = places[-1 if last else 0]
    edited: list[Any] = [dict(each) for each in lines]
    if not text:
        del edited[place]
        return edited
    said = json.loads(text)
    metadata = edited[place]["metadata"]
    if "metadata" in said:  # file and line number stay
        said["metadata"] = {n: metadata[n] for n in ("file", "lineno")} | said["metadata"]
    edited[place] |= said
    return edited


def _rules(path: Path, lines: list[Any]) -> set[str]:
    return {each.rule for each in findings_of(path, lines)}


@pytest.mark.parametrize("name", sorted(set(examples()) - {"mlperf.line", "mlperf.fields"}))
def test_an_example_breaks_its_rule_until_it_is_mended(tmp_path: Path, name: str) -> None:
    example, lines = examples()[name], resnet()
    broken = _with(lines, example["mended"], example["breaks"], last=name in LAST)
    mended = _with(lines, example["mended"], example["mended"], last=name in LAST)

    assert name in _rules(tmp_path / "log", broken)
    assert name not in _rules(tmp_path / "log", mended)


def test_examples_of_text_break_their_rules(tmp_path: Path) -> None:
    from hybridperf.log.published import read_published_log

    for name, severity in (("mlperf.line", Severity.ERROR), ("mlperf.fields", Severity.WARNING)):
        example = examples()[name]
        for text, wrong in ((example["breaks"], True), (example["mended"], False)):
            full = text.replace("{", '{"metadata": {}, "time_ms": 5, ', 1)
            line = text if name == "mlperf.line" else full
            (tmp_path / "log").write_text(f":::MLLOG {line}\n")
            found = read_published_log(tmp_path / "log", "log").findings
            assert [(each.rule, each.severity) for each in found] == [(name, severity)] * wrong


def test_every_rule_of_a_published_log_has_an_example() -> None:
    named = {each.rule for each in explain_all(RULESET)}
    of_logs = {
        name
        for name in named
        if name.startswith("mlperf.") and (name not in RULES or RULES[name].scope == "mlperf.log")
    }

    assert of_logs == set(examples())
    said = explain("mlperf.stop", RULESET)
    assert said.as_json()["breaks"] == examples()["mlperf.stop"]["breaks"]
