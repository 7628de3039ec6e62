"""What a rule is, and the register of all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from suite.findings import Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["RULES", "Deviation", "Rule", "rule"]

#: what a rule looks at: of ours a `SealedRun` or a `Result`, of a round of MLPerf a `Log` or a
#: `Result`, of either a `Submission`
Scope = Literal["run", "result", "mlperf.log", "mlperf.result", "submission"]


@dataclass(frozen=True, slots=True)
class Deviation:
    """What a rule found that is not as it should be."""

    expected: str
    found: str
    line: int | None = None
    run: int | None = None  #: number of the attempt, where a rule of the result means one
    path: str = ""  #: where a rule means another file than the subject's own
    severity: Severity | None = None  #: where it is not the rule's


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: its id, what it looks at, where it is written, and what to do to keep it."""

    id: str
    scope: Scope
    source: str  #: the paragraph that states it
    remedy: str
    check: Callable[..., Iterable[Deviation]]
    severity: Severity = Severity.ERROR


RULES: Final[dict[str, Rule]] = {}  #: by id


def rule(
    rule_id: str,
    *,
    scope: Scope,
    source: str,
    remedy: str,
    severity: Severity = Severity.ERROR,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function ``check(subject, benchmark, **parameters)`` as a rule.

    ``subject`` is what ``scope`` says. ``benchmark`` is the `Task` it is about, for logs and
    results of a round of MLPerf the `Benchmark`, and for a submission it is left out.
    """

    def register(check: Callable[..., Any]) -> Callable[..., Any]:
        assert rule_id not in RULES, rule_id
        RULES[rule_id] = Rule(rule_id, scope, source, remedy, check, severity)
        return check

    return register
