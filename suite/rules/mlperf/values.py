"""What values of unknown origin are, to the rules of MLPerf's rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from suite.logs import keys

if TYPE_CHECKING:
    from suite.logs.log import Log

__all__ = ["division", "number", "whole"]

_MOST: Final = 2**64  # seeds have up to 64 bits; a larger number could not be shown


def number(value: object) -> float | None:
    """Return a finite number as a float, or None where ``value`` is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_MOST < value < _MOST:
        return None
    return float(value)


def whole(value: object) -> int | None:
    """Return a whole number, also one written as a float, or None where ``value`` is none."""
    if number(value) is None or not isinstance(value, int | float) or value != int(value):
        return None
    return int(value)


def division(log: Log) -> Literal["closed", "open"]:
    """Return what the log says its division is; closed where it says nothing that is known."""
    value = log.value(keys.SUBMISSION_DIVISION)
    return "open" if value == "open" else "closed"
