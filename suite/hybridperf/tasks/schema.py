"""Strict construction of dataclasses from TOML tables: no unknown keys, no wrong types."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence

from hybridperf.errors import UserError

__all__ = ["build", "build_rows"]

T = typing.TypeVar("T")

_type_hints: Callable[[object], dict[str, object]] = functools.cache(typing.get_type_hints)


def build(cls: type[T], table: Mapping[str, object], *, path: str, at: str = "") -> T:
    """Construct the dataclass ``cls`` from ``table``, with nested tables as nested dataclasses.

    ``path`` and the dotted key ``at`` name the table in error messages.

    Raises:
        UserError: exit status 2, naming the key, the expected type and the value.
    """
    hints = _type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]  # callers pass dataclasses
    for key in table:
        if key not in fields:
            known = ", ".join(fields)
            raise _refuse(path, _dotted(at, key), f"one of the keys {known}", "this key")
    values: dict[str, object] = {}
    for name, field in fields.items():
        if name in table:
            values[name] = _convert(hints[name], table[name], path=path, at=_dotted(at, name))
        elif field.default is field.default_factory is dataclasses.MISSING:
            raise _refuse(path, _dotted(at, name), "a value", "none")
    return cls(**values)


def build_rows(
    cls: type[T], rows: Sequence[Mapping[str, object]], *, path: str, at: str
) -> tuple[T, ...]:
    """Construct the dataclass ``cls`` from each of ``rows``, the array of tables ``at``.

    Raises:
        UserError: from `build`, naming the row's number too.
    """
    return tuple(build(cls, row, path=path, at=f"{at}.{n}") for n, row in enumerate(rows))


def _convert(hint: object, value: object, *, path: str, at: str) -> object:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        (hint,) = (choice for choice in arguments if choice is not type(None))
        return _convert(hint, value, path=path, at=at)
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        return build(typing.cast("type[object]", hint), value, path=path, at=at)
    if origin is tuple and isinstance(value, list):
        return tuple(_convert(arguments[0], item, path=path, at=at) for item in value)
    if origin is dict and isinstance(value, Mapping):
        return {
            key: _convert(arguments[1], item, path=path, at=_dotted(at, key))
            for key, item in value.items()
        }
    if isinstance(hint, type) and issubclass(hint, enum.StrEnum) and value in list(hint):
        return hint(str(value))
    if origin is typing.Literal:
        if value not in arguments:
            raise _refuse(path, at, f"one of {', '.join(map(str, arguments))}", repr(value))
        return value
    if hint is float and type(value) is int and abs(value) < 2**1023:
        return float(value)
    if hint is float and isinstance(value, float) and not math.isfinite(value):
        raise _refuse(path, at, "a finite number", str(value))
    if hint is object or (isinstance(hint, type) and type(value) is hint):
        return value
    name = hint.__name__ if isinstance(hint, type) else str(hint)
    raise _refuse(path, at, f"a value of type {name}", repr(value))


def _dotted(at: str, key: str) -> str:
    return f"{at}.{key}" if at else key


def _refuse(path: str, key: str, expected: str, found: str) -> UserError:
    at = f"{expected} at {key!r}"
    return UserError.of("task.schema", at, f"{found:.200}", "correct it", path=path)
