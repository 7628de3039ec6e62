"""The registry of constraints on a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from hybridperf.plan.fields import PlanFields
from hybridperf.plan.training_config import TrainingConfig

__all__ = ["CONSTRAINTS", "Constraint", "Reason", "constraint"]

Reason = tuple[str, str, str]  #: expected, found, remedy
Reasons = Callable[[PlanFields, TrainingConfig], Iterator[Reason]]


@dataclass(frozen=True, slots=True)
class Constraint:
    """A combination that is refused, why, and the function that detects it."""

    rule: str  #: rule of its findings, without the prefix ``plan.``
    refused: str  #: as docs/plans.md lists it
    why: str
    reasons: Reasons


CONSTRAINTS: Final[list[Constraint]] = []  #: in the order in which docs list them


def constraint(rule: str, refused: str, why: str) -> Callable[[Reasons], Reasons]:
    """Register a function that yields a `Reason` for each way in which a plan violates it."""

    def register(reasons: Reasons) -> Reasons:
        CONSTRAINTS.append(Constraint(rule, refused, why, reasons))
        return reasons

    return register
