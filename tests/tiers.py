"""Two tiers of tests: every run takes a part of large tables, ``bootstrap.py exhaustive`` the rest.

The part covers all pairs: any two values that some row of the table has together, one of its own
has as well. Most faults show where two things meet (Kuhn et al. 2004); they show in both tiers.
"""

from __future__ import annotations

import dataclasses
import itertools
import zlib
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pytest

from hybridperf.plan import ParallelPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from collections.abc import Set as AbstractSet

    from _pytest.mark import ParameterSet

__all__ = ["covering", "grid", "in_tiers", "is_in_part", "part", "plan_facts", "selected"]

Row = TypeVar("Row")
Fact = tuple[object, object]

_SIZES: Final = ("dp", "pp", "cp", "tp", "shard", "stages", "microbatches", "staleness")


def covering(facts: Sequence[AbstractSet[Any]], always: Iterable[int] = ()) -> list[int]:
    """Return which rows have all pairs of facts, and single facts, that any row has; greedily.

    Rows ``always`` are among them.
    """
    pairs = [
        {frozenset(pair) for pair in itertools.combinations_with_replacement(row, 2)}
        for row in facts
    ]
    chosen = list(always)
    missing = set[frozenset[Any]]().union(*pairs).difference(*(pairs[number] for number in chosen))
    while missing:
        best = max(range(len(pairs)), key=lambda number: len(pairs[number] & missing))
        chosen.append(best)
        missing -= pairs[best]
    return sorted(chosen)


def in_tiers(
    rows: Iterable[Row],
    facts: Callable[[Row], AbstractSet[Fact]] = lambda _: frozenset(),
    *,
    always: Collection[Row] = (),
) -> list[ParameterSet]:
    """Return ``rows`` for `pytest.mark.parametrize`: those that cover no pair are exhaustive.

    Rows are tuples of parameters, or the one parameter. Those in ``always`` are in both tiers.
    """
    table = list(rows)
    kept = covering(
        [facts(row) for row in table], [n for n, row in enumerate(table) if row in always]
    )
    return [
        pytest.param(
            *(row if isinstance(row, tuple) else (row,)),
            marks=() if number in kept else pytest.mark.exhaustive,
        )
        for number, row in enumerate(table)
    ]


def grid(*values: Iterable[Any]) -> list[ParameterSet]:
    """Return all combinations of ``values``, one for each parameter, in tiers."""
    return in_tiers(itertools.product(*values), lambda row: {*enumerate(map(str, row))})


def plan_facts(plan: ParallelPlan) -> set[Fact]:
    """Return the fields of ``plan`` that have other values than a plan of one process.

    Of sizes only whether they are even: what divides by two rarely shows what three shows.
    """
    changed = {
        field.name: value
        for field in dataclasses.fields(plan)
        if (value := getattr(plan, field.name)) != getattr(ParallelPlan(), field.name)
    }
    return {(name, value % 2 if name in _SIZES else value) for name, value in changed.items()}


def selected(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """Return the parameters of the cases of this file that this session runs.

    So a world of ranks that a file shares runs what they look at, and nothing else.
    """
    return [
        item.callspec.params
        for item in request.session.items
        if item.path == request.path
        and isinstance(item, pytest.Function)
        and hasattr(item, "callspec")
    ]


def part(text: str) -> tuple[int, int]:
    """Return ``K/N`` as numbers: the part K, from 0, of N.

    Raises:
        ValueError: where there is no such part.
    """
    number, parts = map(int, text.split("/"))
    if not 0 <= number < parts:
        raise ValueError(f"expected a part from 0/{parts} to {parts - 1}/{parts}, found {text}")
    return number, parts


def is_in_part(name: str, number: int, parts: int) -> bool:
    """Tell whether the test ``name`` is one of part ``number`` of ``parts``, in every run."""
    return zlib.crc32(name.encode()) % parts == number
