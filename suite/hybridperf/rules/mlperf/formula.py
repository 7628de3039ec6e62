"""Evaluate the formulas of rulesets: arithmetic and comparisons on logged values, never code."""

from __future__ import annotations

import ast
import functools
import math
import operator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["LONGEST", "FormulaError", "computed", "holds", "names_in", "parse_formula"]

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


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
