"""Values of unknown origin: what is taken, and what is not."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridperf.untrusted import (
    COUNT_CAP,
    DEPTH_CAP,
    NUMBER_CAP,
    number,
    parse_count,
    parse_object,
    read_object,
    whole,
)

if TYPE_CHECKING:
    from pathlib import Path

_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        (0, 0),
        (-1.5, -1.5),
        (NUMBER_CAP, NUMBER_CAP),
        (NUMBER_CAP + 1, None),
        (10**400, None),
        (math.inf, None),
        (math.nan, None),
        (True, None),
        ("1", None),
        (None, None),
    ],
    ids=lambda value: f"{value!s:.20}",
)
def test_a_number_is_finite_and_within_the_cap(value: object, taken: float | None) -> None:
    assert number(value) == taken


@pytest.mark.parametrize(
    ("value", "taken"),
    [(8, 8), (8.0, 8), (8.5, None), (0, None), (COUNT_CAP + 1, None), ("8", None), (False, None)],
)
def test_a_whole_number_may_be_written_as_a_float(value: object, taken: int | None) -> None:
    assert whole(value, 1, COUNT_CAP) == taken


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        ("8", 8),
        (" 8.0 ", 8),
        ("8.", 8),
        ("8.5", None),
        ("-8", None),
        ("8 GPUs", None),
        ("2x 4", None),
        ("\u0668", None),
        ("9" * 5000, None),
        ("", None),
        (8.0, 8),
        (-8, None),
        ([8], None),
    ],
    ids=lambda value: f"{value!r:.20}",
)
def test_descriptions_state_whole_numbers_as_text_too(value: object, taken: int | None) -> None:
    assert parse_count(value) == taken


@given(value=_ANYTHING)
def test_readers_never_raise_and_keep_their_bounds(value: object) -> None:
    for reader in (number, whole, parse_count):
        found = reader(value, 1, 10)
        assert found is None or 1 <= found <= 10


def test_an_object_is_parsed_once_and_within_bounds(tmp_path: Path) -> None:
    deep = '{"a": ' + "[" * DEPTH_CAP + "]" * DEPTH_CAP + "}"
    for text in (
        '{"a": 1, "a": 2}',
        '{"a": NaN}',
        '{"a": 1e999}',
        f'{{"a": {"9" * 21}}}',
        deep,
        "[]",
    ):
        with pytest.raises(ValueError, match=r"\w"):
            parse_object(text)
    path = tmp_path / "facts.json"
    path.write_text('{"a": 1}')
    (tmp_path / "link.json").symlink_to(path)

    assert read_object(path) == {"a": 1}
    with pytest.raises(OSError, match="link"):
        read_object(tmp_path / "link.json")
