"""The fast tier misses no pair, and the parts of the exhaustive one are all of it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridperf.plan import ParallelPlan
from tests.tiers import covering, in_tiers, is_in_part, part, plan_facts


@given(st.lists(st.frozensets(st.integers(0, 9), max_size=5)))
def test_every_pair_of_any_row_is_one_of_a_chosen_row(rows: list[frozenset[int]]) -> None:
    chosen = covering(rows)

    assert chosen == sorted(set(chosen))
    for row in rows:
        for pair in itertools.combinations_with_replacement(row, 2):
            assert any(rows[number].issuperset(pair) for number in chosen), pair


def test_fewer_rows_than_the_whole_cover_a_grid() -> None:
    grid = list(itertools.product(range(4), repeat=4))

    chosen = covering([frozenset(enumerate(row)) for row in grid])

    assert 16 <= len(chosen) <= 32


def test_rows_that_are_not_chosen_are_exhaustive() -> None:
    cases = in_tiers(["a", "b", "c", "d"], lambda row: {("is", row in "ab")}, always=["d"])

    assert [case.values for case in cases] == [("a",), ("b",), ("c",), ("d",)]
    assert [bool(case.marks) for case in cases] == [False, True, True, False]


def test_the_facts_of_a_plan_are_its_own_fields() -> None:
    assert plan_facts(ParallelPlan()) == set()
    assert plan_facts(ParallelPlan.parse("dp=2,zero=1")) == {("dp", 0), ("zero", 1)}
    assert plan_facts(ParallelPlan.parse("dp=3")) == {("dp", 1)}


@given(st.text(), st.integers(1, 9))
def test_every_test_is_in_one_part(name: str, parts: int) -> None:
    assert [is_in_part(name, number, parts) for number in range(parts)].count(True) == 1


def test_a_part_is_a_number_of_a_number_of_parts() -> None:
    assert part("3/8") == (3, 8)
    for wrong in ("8/8", "-1/8", "0/0", "3"):
        with pytest.raises(ValueError, match=r"expected|unpack"):
            part(wrong)
