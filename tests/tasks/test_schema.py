from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal

import pytest

from hybridperf.errors import ExitCode, UserError
from hybridperf.tasks.schema import build


class Colour(enum.StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Inner:
    size: int


@dataclass(frozen=True)
class Outer:
    name: str
    share: float
    kind: Literal["a", "b"] = "a"
    inner: Inner | None = None
    inners: tuple[Inner, ...] = ()
    sizes: dict[str, int] | None = None
    colour: Colour = Colour.RED
    anything: object = None
    flag: bool = False


def _build(**table: object) -> Outer:
    return build(Outer, {"name": "n", "share": 0.5} | table, path="file.toml")


def test_tables_become_nested_dataclasses() -> None:
    built = _build(
        share=1,
        kind="b",
        inner={"size": 1},
        inners=[{"size": 2}, {"size": 3}],
        sizes={"x": 4},
        colour="red",
        anything=[1, "two"],
        flag=True,
    )

    assert built == Outer(
        "n", 1.0, "b", Inner(1), (Inner(2), Inner(3)), {"x": 4}, Colour.RED, [1, "two"], flag=True
    )
    assert isinstance(built.share, float)
    assert isinstance(built.colour, Colour)


@pytest.mark.parametrize(
    ("table", "key", "expected", "found"),
    [
        ({"nmae": "x"}, "nmae", "one of the keys name, share, kind", "this key"),
        ({"name": 5}, "name", "a value of type str", "5"),
        ({"share": "0.5"}, "share", "a value of type float", "'0.5'"),
        ({"share": True}, "share", "a value of type float", "True"),
        ({"share": float("nan")}, "share", "a finite number", "nan"),
        ({"share": float("inf")}, "share", "a finite number", "inf"),
        ({"share": 10**400}, "share", "a value of type float", "1000"),
        ({"kind": "c"}, "kind", "one of a, b", "'c'"),
        ({"inner": {"size": 1.0}}, "inner.size", "a value of type int", "1.0"),
        ({"inner": {"size": True}}, "inner.size", "a value of type int", "True"),
        ({"inner": {}}, "inner.size", "a value", "none"),
        ({"inner": {"size": 1, "x": 2}}, "inner.x", "one of the keys size", "this key"),
        ({"inner": 3}, "inner", "a value of type Inner", "3"),
        ({"inners": {"size": 1}}, "inners", "a value of type tuple", "{'size': 1}"),
        ({"inners": [{"size": "x"}]}, "inners.size", "a value of type int", "'x'"),
        ({"sizes": {"x": "y"}}, "sizes.x", "a value of type int", "'y'"),
        ({"colour": "blue"}, "colour", "a value of type Colour", "'blue'"),
        ({"flag": 1}, "flag", "a value of type bool", "1"),
    ],
)
def test_a_refusal_names_file_key_expected_and_found(
    table: dict[str, object], key: str, expected: str, found: str
) -> None:
    with pytest.raises(UserError) as refusal:
        _build(**table)

    assert refusal.value.exit_code is ExitCode.USAGE
    finding = refusal.value.finding
    assert finding is not None
    assert finding.rule == "task.schema"
    assert finding.path == "file.toml"
    assert finding.expected.startswith(expected)
    assert finding.expected.endswith(f"at {key!r}")
    assert finding.found.startswith(found)


def test_a_missing_key_is_named() -> None:
    with pytest.raises(UserError, match=r"file\.toml: expected a value at 'share', found none"):
        build(Outer, {"name": "n"}, path="file.toml")
