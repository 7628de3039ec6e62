"""Mutations of valid logs whose official verdict is known by how they are made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.rules.mlperf.mutants import TOKEN, Line, copied

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hybridperf.rules.mlperf.ruleset import Demand

__all__ = ["known_mutants"]

Mutant = tuple[str, list[Line], bool]  #: what was done, the log, whether it is valid


def known_mutants(lines: list[Line], demands: tuple[Demand, ...], ruleset: str) -> Iterator[Mutant]:
    """Yield mutants of the valid log ``lines``, which a ruleset asks ``demands`` of."""
    for name, edit in VALID.items():
        mutant = copied(lines)
        edit(mutant)
        yield name, mutant, True
    for name, edit in INVALID.items():
        mutant = copied(lines)
        edit(mutant)
        yield name, mutant, False
    yield from _missing(lines, demands)
    yield from _limits(lines, ruleset)
    yield from _tensors(lines, demands)
    yield from _values(lines, demands)


def _missing(lines: list[Line], demands: tuple[Demand, ...]) -> Iterator[Mutant]:
    """Yield logs without a key, and with a key that occurs again, with another value."""
    for demand in demands:
        others = [line for line in lines if line.fields["key"] != demand.key]
        joined = demand.key not in {line.fields["key"] for line in lines}
        if demand.least and not joined and not _instead(demand, others):
            yield f"no {demand.key}", others, demand.severity == "warning"
        if demand.most == 1 and not joined:
            again = Line("", {**_first(lines, demand.key).fields, "value": "another"})
            yield f"another {demand.key}", [*lines, again], False


def _instead(demand: Demand, others: list[Line]) -> bool:
    return bool({line.fields["key"] for line in others}.intersection(demand.instead))


def _limits(lines: list[Line], ruleset: str) -> Iterator[Mutant]:
    """Yield logs that initialise for just less than the limit, for all of it, and for more."""
    start = min(each.fields["time_ms"] for each in lines if each.fields["key"] == "init_start")
    division = _first(lines, "submission_division").fields["value"]
    minutes = 240 if division == "open" and ruleset >= "mlperf-training-2" else 30
    for more_ms, valid in ((-1, True), (0, False), (1, False)):
        mutant = copied(lines)
        for line in mutant:
            if line.fields["key"] == "init_stop":
                line.fields["time_ms"] = start + minutes * 60_000 + more_ms
        yield f"init of {minutes} min and {more_ms} ms", mutant, valid


def _tensors(lines: list[Line], demands: tuple[Demand, ...]) -> Iterator[Mutant]:
    for demand in demands:
        if not demand.covers:
            continue
        valid = demand.severity == "warning"
        one = next((each for each in lines if each.fields["key"] == demand.key), None)
        if one is None:
            continue
        more = one.copy()
        more.fields["metadata"]["tensor"] = "a_tensor_more"
        yield "a tensor twice", [*lines, one], valid
        yield "a tensor more", [*lines, more], valid
        yield "a tensor less", [line for line in lines if line is not one], valid


def _values(lines: list[Line], demands: tuple[Demand, ...]) -> Iterator[Mutant]:
    """Yield logs with a value outside of what the ruleset allows."""
    for number, demand in enumerate(demands):
        constraints = demand.value
        if not constraints.keys() & {"equals", "one_of", "above", "minimum"}:
            continue
        if demand.key not in {line.fields["key"] for line in lines}:
            continue
        bound = constraints.get("above", constraints.get("minimum", 0))
        wrong: object = ((bound or 0) - 1, "text", None, [], float("nan"))[number % 5]
        mutant = copied(lines)
        _first(mutant, demand.key).fields["value"] = wrong
        yield f"{demand.key} = {wrong!r}", mutant, False


def _first(lines: list[Line], key: str) -> Line:
    return next(line for line in lines if line.fields["key"] == key)


def _line(key: Any, value: Any = None, **metadata: Any) -> Line:
    return Line("", {"key": key, "time_ms": 1, "value": value, "metadata": metadata})


def _after(lines: list[Line], key: str, other: str) -> None:
    """Put a copy of the first line with ``key`` after the last one with ``other``."""
    last = max(n for n, line in enumerate(lines) if line.fields["key"] == other)
    lines.insert(last + 1, _first(lines, key).copy())


def _before(lines: list[Line], key: str, other: str) -> None:
    """Put a copy of the first line with ``key`` before the first one with ``other``."""
    first = min(n for n, line in enumerate(lines) if line.fields["key"] == other)
    lines.insert(first, _first(lines, key).copy())


def _update(lines: list[Line], key: str, **fields: Any) -> None:
    for line in lines:
        if line.fields["key"] == key:
            line.fields |= fields


def _raw(lines: list[Line], key: str, change: Callable[[str], str]) -> None:
    line = _first(lines, key)
    line.raw = change(line.text())


def _backwards(lines: list[Line]) -> None:
    _update(lines, "run_stop", time_ms=0)


#: what the checkers let pass, wrong as some of it is
VALID: dict[str, Callable[[list[Line]], object]] = {
    "nothing": lambda lines: lines.copy(),
    "an unknown key": lambda lines: lines.append(_line("nobody_knows_it", float("nan"))),
    "a key that is null": lambda lines: lines.append(_line(None, 5)),
    "a key that is a list": lambda lines: lines.append(_line(["seed"], 5)),
    "infinity under an unknown key": lambda lines: lines.append(_line("x", float("inf"))),
    "a number of 400 digits": lambda lines: lines.append(_line("x", 10**400)),
    "metadata that is a list, where none is asked for": (
        lambda lines: _update(lines, "cache_clear", metadata=["file"])
    ),
    "a clock that runs backwards": _backwards,
    "an aborted run that reached the target": (
        lambda lines: _first(lines, "run_stop").fields["metadata"].update(status="aborted")
    ),
    "a second run_start": lambda lines: _after(lines, "run_start", "run_start"),
    "a second run_stop": lambda lines: _after(lines, "run_stop", "run_stop"),
    "a second init_start before init_stop": lambda lines: _after(lines, "init_start", "init_start"),
    "caches cleared at the end": lambda lines: _after(lines, "cache_clear", "run_stop"),
    "text before the token": lambda lines: _raw(lines, "run_stop", lambda text: "50%\r" + text),
    "a token twice": lambda lines: _raw(lines, "run_stop", lambda text: TOKEN + text),
    "a line that ends in a space that is not ASCII": (
        lambda lines: _raw(lines, "run_stop", lambda text: text + "\xa0\x85")
    ),
    "a duplicate key": lambda lines: _raw(
        lines, "run_stop", lambda text: text.replace('"key"', '"key": "other", "key"')
    ),
}

#: what the checkers refused
INVALID: dict[str, Callable[[list[Line]], object]] = {
    "a second init_start after init_stop": lambda lines: _after(lines, "init_start", "init_stop"),
    "init_stop before init_start": lambda lines: _before(lines, "init_stop", "init_start"),
    "run_start before init_stop": lambda lines: _before(lines, "run_start", "init_stop"),
    "run_stop before run_start": lambda lines: _before(lines, "run_stop", "run_start"),
    "no space after the token": lambda lines: _raw(
        lines, "run_stop", lambda text: text.replace(TOKEN, TOKEN.rstrip())
    ),
    "half a line": lambda lines: _raw(lines, "run_stop", lambda text: text[: len(text) // 2]),
    "text after the object": lambda lines: _raw(lines, "cache_clear", lambda text: text + " x"),
    "an empty object": lambda lines: lines.append(Line("", {})),
    "a list in place of an object": lambda lines: lines.append(Line("", {}, f"{TOKEN}[]")),
    "a token alone": lambda lines: lines.append(Line("", {}, TOKEN)),
    "a line without a value": lambda lines: _first(lines, "cache_clear").fields.pop("value"),
    "a line without metadata": lambda lines: _first(lines, "cache_clear").fields.pop("metadata"),
    "a line without a time": lambda lines: _first(lines, "cache_clear").fields.pop("time_ms"),
    "a stop without a status": lambda lines: _update(lines, "run_stop", metadata={}),
    "an unknown division": lambda lines: _update(lines, "submission_division", value="Closed"),
    "no line": lambda lines: lines.clear(),
}
