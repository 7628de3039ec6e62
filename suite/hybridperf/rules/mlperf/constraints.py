"""The constraints that rulesets put on logged values, by name (`docs/rounds.md`).

Formulas are arithmetic and comparisons on logged values, never code.
"""

from __future__ import annotations

import ast
import functools
import math
import operator
from typing import TYPE_CHECKING, Any, Final

from hybridperf.untrusted import whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "LONGEST",
    "Constraints",
    "FormulaError",
    "computed",
    "holds",
    "in_words",
    "is_comparable",
    "keeps",
    "names_in",
    "parse_constraints",
    "parse_formula",
    "unmet",
]


LONGEST: Final = 200  #: characters of a formula
_NOT_COMPUTED: Final = (KeyError, IndexError, TypeError, ValueError, ArithmeticError)
_EXACT: Final = 1e-5  # distance from an integer that the checkers of all rounds tolerate


class FormulaError(ValueError):
    """A text is not a formula."""


def is_integral(number: float) -> bool:
    """Tell whether ``number`` is as near to an integer as the checkers of the rounds ask for."""
    return abs(round(number) - number) < _EXACT


_CALLS: Final[Mapping[str, Callable[..., Any]]] = {
    "abs": abs,
    "ceil": math.ceil,
    "floor": math.floor,
    "sqrt": math.sqrt,
    "whole": is_integral,
}
_BINARY: Final[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_COMPARED: Final[Mapping[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Eq: operator.eq,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


@functools.cache
def parse_formula(text: str) -> ast.expr:
    """Parse ``text`` into a tree in which only arithmetic, comparisons, and/or and names occur.

    Raises:
        FormulaError: if it is anything else.
    """
    if len(text) > LONGEST:
        raise FormulaError(f"a formula of more than {LONGEST} characters")
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise FormulaError(f"{text!r}, which is not a formula") from error
    for node in ast.walk(tree):
        if not _is_allowed(node):
            raise FormulaError(f"{text!r} with {type(node).__name__}, which formulas do not have")
    return tree


def names_in(text: str) -> set[str]:
    """Return the names that the formula ``text`` uses, functions excluded."""
    tree = parse_formula(text)
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - set(_CALLS)


def holds(text: str, values: Mapping[str, object]) -> bool:
    """Tell whether the formula ``text`` is true of ``values``; one that cannot be computed is not.

    A name that ``values`` lacks, text in place of a number and overflow cannot be computed.
    """
    try:
        return bool(_value(parse_formula(text), values))
    except _NOT_COMPUTED:
        return False


def computed(text: str, values: Mapping[str, object]) -> float | None:
    """Return the number that the formula ``text`` makes of ``values``; None if it makes none."""
    try:
        value = float(_value(parse_formula(text), values))
    except _NOT_COMPUTED:
        return None
    return value if math.isfinite(value) else None


def _is_allowed(node: ast.AST) -> bool:
    match node:
        case ast.Constant():
            return isinstance(node.value, int | float)
        case ast.Call():
            return isinstance(node.func, ast.Name) and node.func.id in _CALLS and not node.keywords
        case ast.operator():
            return type(node) in _BINARY
        case ast.cmpop():
            return type(node) in _COMPARED
    return isinstance(
        node,
        ast.Name | ast.Load | ast.BinOp | ast.Compare | ast.BoolOp | ast.And | ast.Or
        | ast.Subscript | ast.UnaryOp | ast.USub,
    )  # fmt: skip


def _value(node: ast.expr, values: Mapping[str, object]) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return values[node.id]
        case ast.UnaryOp():
            return -_value(node.operand, values)
        case ast.BinOp():
            left, right = _value(node.left, values), _value(node.right, values)
            if not (_is_number(left) and _is_number(right)):
                raise TypeError  # text and lists have operators of their own
            return _BINARY[type(node.op)](left, right)
        case ast.BoolOp():
            unite = all if isinstance(node.op, ast.And) else any
            return unite(_value(each, values) for each in node.values)
        case ast.Subscript():
            return _value(node.value, values)[_value(node.slice, values)]
        case ast.Call(func=ast.Name(id=name)):
            return _CALLS[name](*(_value(each, values) for each in node.args))
        case ast.Compare():
            sides = [_value(each, values) for each in (node.left, *node.comparators)]
            return all(
                _COMPARED[type(compared)](left, right)
                for compared, left, right in zip(node.ops, sides, sides[1:], strict=False)
            )
    raise FormulaError(f"{type(node).__name__}, which formulas do not have")


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
