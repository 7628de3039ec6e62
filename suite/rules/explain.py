"""What a ruleset asks for, rule by rule, in words."""

from __future__ import annotations

import difflib
import inspect
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from suite.refusal import ExitCode, Refusal
from suite.rules.check import RULESET
from suite.rules.mlperf import strict
from suite.rules.mlperf.ruleset import known_rulesets, load_ruleset
from suite.rules.reading import READING
from suite.rules.rule import RULES

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Explanation", "explain", "explain_all"]

_REGISTERED = strict  # importing it registers the rules of rounds, as `check` does ours


@dataclass(frozen=True, slots=True)
class Explanation:
    """A rule in words, as one ruleset asks for it."""

    rule: str
    severity: str
    ruleset: str
    mode: Literal["strict", "as-published"]  #: ``strict`` includes all of ``as-published``
    checks: str
    source: str  #: the paragraph that states it
    remedy: str
    parameters: Mapping[str, Any]

    def as_json(self) -> dict[str, object]:
        """Return the explanation, safe as JSON."""
        return asdict(self)


def explain_all(ruleset: str) -> list[Explanation]:
    """Return what is found while reading for ``ruleset``, and then its rules, in its order."""
    own = ruleset == RULESET
    found = [
        Explanation(
            name,
            str(reading.severity),
            ruleset,
            "strict" if own else "as-published",
            reading.checks,
            reading.source,
            reading.remedy,
            {},
        )
        for name, reading in READING.items()
        if (reading.ours if own else reading.rounds)
    ]
    for name, parameters in _asked(ruleset).items():
        rule = RULES[name]
        checks = " ".join(inspect.cleandoc(rule.check.__doc__ or "").split())
        found.append(
            Explanation(
                name,
                str(rule.severity),
                ruleset,
                "strict",
                checks,
                rule.source,
                rule.remedy,
                parameters,
            )
        )
    return found


def explain(name: str, ruleset: str) -> Explanation:
    """Return what the rule ``name`` asks for, by ``ruleset`` or else by another that has it.

    Raises:
        Refusal: exit status 2, with the nearest names, where none has it.
    """
    names = set[str]()
    for each in dict.fromkeys([ruleset, *known_rulesets()]):
        for explanation in explain_all(each):
            if explanation.rule == name:
                return explanation
            names.add(explanation.rule)
    near = difflib.get_close_matches(name, sorted(names), n=3)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    reason = f"expected the id of a rule, found {name!r:.80}; {hint}'hybridperf check --rules'"
    raise Refusal(f"{reason} shows all.", ExitCode.USAGE)


def _asked(ruleset: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the parameters of each registered rule that ``ruleset`` applies."""
    if ruleset != RULESET:
        return load_ruleset(ruleset).strict
    path = Path(__file__).parent / "rulesets" / f"{ruleset}.toml"
    rules: Mapping[str, Mapping[str, Any]] = tomllib.loads(path.read_text("utf-8"))["rules"]
    return rules
