"""The verdict on a claim, by one table of rules, from the readings of its check."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Evidence", "Reading"]


@dataclass(frozen=True, slots=True)
class Reading:
    """One value that a check computes, in the unit of the claim, and the conditions it holds under."""

    value: float
    conditions: Mapping[str, str] = field(default_factory=dict)
    #: what the claim's source leaves open, by name: the definition of a metric, the base of a
    #: comparison, or a point of a grid
    low: float | None = None  #: 95 % interval
    high: float | None = None
    distinguishable: bool | None = None  #: whether a difference was decided; None: none is claimed
    command: str = ""  #: command that prints this value alone


@dataclass(frozen=True, slots=True)
class Evidence:
    """The readings of a check."""

    readings: tuple[Reading, ...]
    strongest: tuple[Reading, ...] = ()  #: readings over the strongest bases at hand
    notes: tuple[str, ...] = ()
    lacks: str = ""  #: why there are no readings
