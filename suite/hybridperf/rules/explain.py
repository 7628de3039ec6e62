"""Describe the rules of a ruleset."""

from __future__ import annotations

import functools
import inspect
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from hybridperf.errors import ExitCode, UserError
from hybridperf.rules import check
from hybridperf.rules.mlperf.ruleset import known_rulesets, load_ruleset
from hybridperf.rules.rule import READING, RULES
from hybridperf.rules.verdict import RULESET
from hybridperf.spelling import did_you_mean
from hybridperf.tasks.schema import build

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Example", "Explanation", "examples", "explain", "explain_all"]

_REGISTERED: Final = check  # imported to register the rules


@dataclass(frozen=True, slots=True)
class Explanation:
    """The description of a rule, with the parameters of one ruleset."""

    rule: str
    severity: str
    ruleset: str
    mode: Literal["strict", "package", "as-published"]  #: each includes those after it
    checks: str
    source: str  #: paragraph of the MLPerf or HybridPerf rules
    remedy: str
    parameters: Mapping[str, Any]
    example_of: str  #: what the example is part of
    breaks: str  #: lines that break it, in part; "" if it breaks that there is no such line
    mended: str  #: the same lines as they should be; "" if there should be none

    def as_json(self) -> dict[str, object]:
        """Return the explanation as a JSON-serialisable dictionary."""
        return asdict(self)


def explain_all(source: str | Path) -> list[Explanation]:
    """Describe the checks made while reading, then the rules of a ruleset in its order.

    ``source`` is the name of a ruleset, or the file of one.
    """
    own, ruleset = source == RULESET, load_ruleset(source)
    found = [
        Explanation(
            name,
            str(reading.severity),
            ruleset.name,
            "strict" if own else "as-published",
            reading.checks,
            reading.source,
            reading.remedy,
            {},
            **_example(name),
        )
        for name, reading in READING.items()
        if (reading.ours if own else reading.rounds)
    ]
    for name, parameters in ruleset.rules.items():
        rule = RULES[name]
        checks = " ".join(inspect.cleandoc(rule.check.__doc__ or "").split())
        found.append(
            Explanation(
                name,
                str(rule.severity),
                ruleset.name,
                "package" if rule.scope.startswith("package.") else "strict",
                checks,
                rule.source,
                rule.remedy,
                parameters,
                **_example(name),
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class Example:
    """Lines that break a rule, and the same lines mended; what a line does not say is as before."""

    breaks: str
    mended: str
    of: str = "log"  #: a key of `_PARTS`
    runs: tuple[int, ...] = ()  #: numbers of the runs that say it; mended in the first of them
    last: bool = False  #: of the last lines with their key, not the first
    given: str = ""  #: what else the result has


@functools.cache
def examples() -> Mapping[str, Example]:
    """Return an example of each rule, by rule id."""
    folder = Path(__file__).with_name("examples")
    found: dict[str, Example] = {}
    for path in sorted(folder.glob("*.toml")):
        for name, table in tomllib.loads(path.read_text(encoding="utf-8")).items():
            assert name not in found, name
            found[name] = build(Example, table, path=path.name, at=name)
    return found


_PARTS: Final = {
    "log": "the log",
    "sealed log": "the log, without sealing it anew",
    "text": "the log",
    "manifest": "result_<n>.json",
    "description": "systems/<system>.json",
    "files": "the files' names",
    "scaling": "scaling.json",
    "task": "task.toml",
}


def _example(name: str) -> dict[str, str]:
    """Return the fields of an `Explanation` that show the example of a rule."""
    example = examples()[name]
    count = len(example.runs)
    several = f" of {count} runs, mended in one of them" if count > 1 else ""
    given = f", given {example.given}" if example.given else ""
    return {
        "example_of": _PARTS[example.of] + several + given,
        "breaks": example.breaks.strip(),
        "mended": example.mended.strip(),
    }


def explain(name: str, ruleset: str | Path) -> Explanation:
    """Describe the rule ``name`` of ``ruleset``, or else of the first other ruleset with it.

    Raises:
        UserError: exit status 2 if no ruleset has it; the message suggests similar names.
    """
    names = set[str]()
    for each in dict.fromkeys([ruleset, RULESET, *reversed(known_rulesets())]):
        for explanation in explain_all(each):
            if explanation.rule == name:
                return explanation
            names.add(explanation.rule)
    hint = f"{did_you_mean(name, sorted(names), most=3)} 'hybridperf check --rules'".lstrip()
    reason = f"expected the id of a rule, found {name!r:.80}; {hint} shows all."
    raise UserError(reason, ExitCode.USAGE)
