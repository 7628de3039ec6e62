"""Laws of reading: what is written is read, also by those who read leniently."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hybridperf.log.reader import read_log, read_published_log
from hybridperf.log.writer import LogWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_TOKEN = ":::MLLOG"  # in a text, it would begin the line anew, as it did to the checker
_laws = settings(derandomize=True, max_examples=100)
_AWKWARD = [
    '"',
    "\\",
    "\n",
    "\r",
    "\0",
    "\x85",
    "ä",
    "\u2028",
    "\u202e",
    "😀",
    ":::MLLOG",
    ":",
    "{",
]
_TEXTS = st.text(max_size=12) | st.sampled_from(_AWKWARD)
_NUMBERS = st.integers(-(10**18), 10**18) | st.floats(allow_nan=False, allow_infinity=False)
_VALUES = st.recursive(
    st.none() | st.booleans() | _NUMBERS | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=6,
)
_NAMES = st.sampled_from(["epoch_num", "status", "first_epoch_num", "é"])
_METADATA = st.dictionaries(_NAMES, _VALUES, max_size=2)
_EVENTS = st.sampled_from(["POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"])
_TIMES = st.integers(0, 253_402_300_799_999)  # to the year 9999
_WRITTEN = st.lists(st.tuples(_EVENTS, _TEXTS, _VALUES, _METADATA), max_size=6)
_LINE = st.fixed_dictionaries(
    {
        "namespace": _TEXTS,
        "time_ms": _TIMES,
        "event_type": _EVENTS,
        "key": _TEXTS,
        "value": _VALUES,
        "metadata": st.dictionaries(_TEXTS, _VALUES, max_size=3),
    }
)
# What loggers leave out, add, or write in a type of their own.
_ODD_LINE = st.fixed_dictionaries(
    {
        "time_ms": _TIMES | st.floats(0, 2**47),
        "key": _TEXTS,
        "value": _VALUES,
        "metadata": _VALUES,
    },
    optional={
        "event_type": _VALUES,
        "namespace": _VALUES,
        "sha256": _TEXTS,
        "line": _VALUES,
    },
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "log.txt"


@_laws
@given(_WRITTEN)
def test_what_the_writer_writes_is_read(
    path: Path, lines: list[tuple[str, str, Any, dict[str, Any]]]
) -> None:
    path.unlink(missing_ok=True)
    with LogWriter(path) as writer:
        write: dict[str, Callable[..., None]] = {
            "POINT_IN_TIME": writer.point,
            "INTERVAL_START": writer.start,
            "INTERVAL_END": writer.stop,
        }
        for event_type, key, value, metadata in lines:
            write[event_type](key, value, **metadata)

    log, published = read_log(path), read_published_log(path, "log")

    assert log.findings == []
    assert [(each.event_type, each.key, each.value) for each in log.entries] == [
        line[:3] for line in lines
    ]
    for each, line in zip(log.entries, lines, strict=True):
        assert {name: each.metadata[name] for name in line[3]} == line[3]
    assert log.chained is bool(lines)
    assert _facts(published.entries) == _facts(log.entries)  # MLPerf's readers see the same


@_laws
@given(st.lists(_LINE, max_size=6), st.booleans(), st.sampled_from([",", ", "]))
def test_what_an_mlperf_logger_writes_is_read(
    path: Path, lines: list[dict[str, Any]], escaped: bool, comma: str
) -> None:
    texts = [json.dumps(each, ensure_ascii=escaped, separators=(comma, ":")) for each in lines]
    assume(not any(_TOKEN in text for text in texts))
    path.write_bytes(_log(texts))

    log = read_published_log(path, "log")

    assert log.findings == []
    for each, line in zip(log.entries, lines, strict=True):
        assert {name: getattr(each, name) for name in line if name != "namespace"} == {
            name: value for name, value in line.items() if name != "namespace"
        }


@_laws
@given(st.lists(_ODD_LINE, max_size=6))
def test_what_another_logger_writes_is_read_as_far_as_it_goes(
    path: Path, lines: list[dict[str, Any]]
) -> None:
    texts = [json.dumps(each) for each in lines]
    assume(not any(_TOKEN in text for text in texts))
    path.write_bytes(_log(texts))

    log = read_published_log(path, "log")

    assert log.findings == []
    for each, line in zip(log.entries, lines, strict=True):
        metadata, event_type = line.get("metadata"), line.get("event_type")
        assert each.key == line["key"]
        assert each.time_ms == int(line["time_ms"])
        assert each.value == line["value"]
        assert each.metadata == (metadata if isinstance(metadata, dict) else {})
        assert each.event_type == (event_type if isinstance(event_type, str) else "")


@_laws
@given(st.lists(_LINE, min_size=1, max_size=4), st.data())
def test_a_line_is_counted_where_it_stands(
    path: Path, lines: list[dict[str, Any]], data: st.DataObject
) -> None:
    assume(not any(_TOKEN in json.dumps(each) for each in lines))
    others = [data.draw(st.integers(0, 5)) for _ in lines]
    texts = [
        "x\n" * count + f":::MLLOG {json.dumps(each)}\n"
        for count, each in zip(others, lines, strict=True)
    ]
    path.write_text("".join(texts))

    numbers = [sum(others[: index + 1]) + index + 1 for index in range(len(lines))]

    assert [each.line for each in read_published_log(path, "log").entries] == numbers
    assert [each.line for each in read_log(path).entries] == numbers


def _log(texts: list[str]) -> bytes:
    return "".join(f":::MLLOG {text}\n" for text in texts).encode("utf-8", "surrogatepass")


def _facts(entries: list[Any]) -> list[tuple[object, ...]]:
    return [
        (each.key, each.time_ms, each.event_type, each.value, each.metadata) for each in entries
    ]
