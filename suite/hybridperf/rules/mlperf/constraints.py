"""The constraints that rulesets put on logged values, by name (`docs/rounds.md`)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from hybridperf.rules.mlperf.formula import FormulaError, holds, is_integral, parse_formula
from hybridperf.untrusted import whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Constraints", "in_words", "is_comparable", "keeps", "parse_constraints", "unmet"]

Constraints = dict[str, Any]  #: kind -> parameter; all must hold


def unmet(
    constraints: Constraints, value: object, values: Mapping[str, object] | None = None
) -> str | None:
    """Return the constraints in words if ``value`` violates one, else None.

    ``values`` are those of the other keys that a formula may name.
    """
    return None if keeps(constraints, value, values) else in_words(constraints)


def keeps(
    constraints: Constraints, value: object, values: Mapping[str, object] | None = None
) -> bool:
    """Tell whether ``value`` keeps all ``constraints``; ``values`` are as for `unmet`."""
    for kind, parameter in constraints.items():
        if kind == "holds":
            if not holds(parameter, {**(values or {}), "value": value}):
                return False
        elif not _KINDS[kind][0](value, parameter):
            return False
    return True


def in_words(constraints: Constraints) -> str:
    """Return the constraints in words, such as ``at least 0.72 and below 1.0``."""
    return " and ".join(_words(kind, parameter) for kind, parameter in constraints.items())


def is_comparable(constraints: Constraints, value: object) -> bool:
    """Tell whether the limits in ``constraints`` can be compared with ``value`` at all."""
    if "fields" not in constraints:
        return _is_number(value)
    if not isinstance(value, dict):
        return False
    for name, limits in constraints["fields"].items():
        if not _is_number(value.get(name)):
            return False
        if not keeps(limits, value[name]):
            break  # the checkers then looked no further
    return True


def parse_constraints(table: object) -> Constraints:
    """Return ``table`` if it is a table of constraints.

    Raises:
        ValueError: if it is not; the message names what is wrong.
    """
    if not isinstance(table, dict):
        raise ValueError(f"{table!r:.80}, which is not a table of constraints")  # noqa: TRY004 - a file's content, not an argument
    for kind, parameter in table.items():
        if kind == "holds":
            if not isinstance(parameter, str):
                raise FormulaError(f"{parameter!r:.80}, which is not a formula")
            parse_formula(parameter)
        elif kind not in _KINDS:
            known = ", ".join([*_KINDS, "holds"])
            raise ValueError(f"{kind!r:.40}, which is no constraint; these are: {known}")
        elif kind == "fields":
            for each in parameter.values():
                parse_constraints(each)
        elif not isinstance(parameter, _PARAMETERS.get(kind, int | float)):
            raise ValueError(f"{kind} = {parameter!r:.80}, which is of the wrong type")
    return table


def _words(kind: str, parameter: Any) -> str:
    if kind == "holds":
        return f"such that {parameter}"
    if kind == "fields":
        inner = (
            f"{name} {' and '.join(_words(*each) for each in limits.items())}"
            for name, limits in parameter.items()
        )
        return "with " + ", ".join(inner)
    shown = ", ".join(map(str, parameter)) if isinstance(parameter, list) else parameter
    return _KINDS[kind][1].format(shown)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _is_plain_number(value: object) -> bool:
    return _is_number(value) and not isinstance(value, bool)


def _is_whole(value: object, least: int) -> bool:
    return (found := whole(value, least)) is not None and found >= least


def _computed(test: Callable[[Any, Any], bool]) -> Callable[[object, Any], bool]:
    """Return ``test`` for numbers; overflow, infinity and NaN fail it as other types do."""

    def check(value: object, parameter: Any) -> bool:
        try:
            return _is_number(value) and test(value, parameter)
        except (ArithmeticError, ValueError):
            return False

    return check


def _has(value: object, names: list[str]) -> bool:
    return isinstance(value, dict | list | str) and all(name in value for name in names)


def _fields_keep(value: object, limits: Mapping[str, Constraints]) -> bool:
    return isinstance(value, dict) and all(
        name in value and keeps(each, value[name]) for name, each in limits.items()
    )


# A key of a released ruleset is never given another meaning.
_KINDS: Final[dict[str, tuple[Callable[[Any, Any], bool], str]]] = {
    "not_empty": (lambda value, _: value != "", "not empty"),
    "equals": (lambda value, other: bool(value == other), "equal to {}"),
    "one_of": (lambda value, others: value in others, "one of {}"),
    "number": (lambda value, _: _is_plain_number(value), "a number"),
    "integer": (lambda value, _: isinstance(value, int), "an integer without a decimal point"),
    "whole": (_is_whole, "a whole number of at least {}"),
    "integral": (_computed(lambda value, _: is_integral(value)), "a whole number"),
    "minimum": (lambda value, least: _is_number(value) and value >= least, "at least {}"),
    "maximum": (lambda value, most: _is_number(value) and value <= most, "at most {}"),
    "above": (lambda value, bound: _is_number(value) and value > bound, "above {}"),
    "below": (lambda value, bound: _is_number(value) and value < bound, "below {}"),
    "multiple_of": (_computed(lambda value, unit: is_integral(value / unit)), "a multiple of {}"),
    "doubled_or_halved_from": (
        _computed(lambda value, start: is_integral(math.log2(value / start))),
        "{} doubled or halved any number of times",
    ),
    "length": (
        lambda value, length: isinstance(value, list | str | dict) and len(value) == length,
        "a list of {}",
    ),
    "has": (_has, "with {}"),
    "fields": (_fields_keep, "with {}"),
}
_PARAMETERS: Final[Mapping[str, type | tuple[type, ...]]] = {
    "not_empty": bool,
    "number": bool,
    "integer": bool,
    "integral": bool,
    "equals": (str, int, float, bool),
    "one_of": list,
    "has": list,
}
