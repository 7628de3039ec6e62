"""Edits of logs that nobody thought of, drawn at random: of bytes, lines, fields and times."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from hybridperf.log import keys
from hybridperf.log.writer import TOKEN

if TYPE_CHECKING:
    from collections.abc import Callable

    Bodies = list[str]

__all__ = ["ARBITRARY", "BYTES", "LINES", "MUTATIONS", "OF_BODIES", "OF_BYTES", "VALUES"]

_SHARES = st.floats(0, 1, exclude_max=True)  # of the way through a log
_NUMBERS = st.integers(-(10**20), 10**20) | st.floats()
VALUES = st.recursive(
    st.none() | st.booleans() | _NUMBERS | st.text(max_size=6) | st.sampled_from(["1", "success"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=5,
)
_KEYS = st.sampled_from(
    sorted({value for value in vars(keys).values() if isinstance(value, str) and "." not in value})
)
_FIELDS = st.sampled_from(["time_ms", "event_type", "key", "value", "metadata", "namespace"])
_PIECES = [b":::MLLOG ", b"\n", b"\r", b"{", b"}", b"[", b'"', b":", b", ", b"\\", b"1e999", b"NaN"]

BYTES = st.lists(st.sampled_from(_PIECES) | st.binary(max_size=8), max_size=40).map(b"".join)
_ENTRIES = st.fixed_dictionaries(
    {},
    optional={
        "key": _KEYS | VALUES,
        "time_ms": st.integers(0, 2**41) | VALUES,
        "event_type": st.sampled_from(["POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"]) | VALUES,
        "value": st.sampled_from(["resnet/laptop", "resnet", "bert", "closed", 1, True]) | VALUES,
        "metadata": st.dictionaries(
            st.sampled_from(["epoch_num", "status", "first_epoch_num", "tensor"]), VALUES
        )
        | VALUES,
    },
)
LINES = st.lists(_ENTRIES | VALUES, max_size=25).map(
    lambda entries: "".join(f"{TOKEN}{json.dumps(entry)}\n" for entry in entries).encode()
)


def _at(share: float, length: int) -> int:
    return int(share * length)


def _flip(share: float, mask: int) -> Callable[[bytes], bytes]:
    def edit(text: bytes) -> bytes:
        place = _at(share, len(text))
        return text[:place] + bytes([text[place] ^ mask]) + text[place + 1 :] if text else text

    return edit


def _cut(first: float, last: float) -> Callable[[bytes], bytes]:
    """Remove what stands between two places."""
    return lambda text: (
        text[: _at(min(first, last), len(text))] + text[_at(max(first, last), len(text)) :]
    )


def _insert(share: float, piece: bytes) -> Callable[[bytes], bytes]:
    return lambda text: text[: (place := _at(share, len(text)))] + piece + text[place:]


OF_BYTES = st.one_of(
    st.builds(_flip, _SHARES, st.integers(1, 255)),
    st.builds(_cut, _SHARES, _SHARES),
    st.builds(_insert, _SHARES, st.sampled_from(_PIECES) | st.binary(min_size=1, max_size=4)),
    st.sampled_from(
        [
            lambda text: text.replace(b"\n", b"\r\n"),
            lambda text: text.replace(b"\n", b"\n\n"),
            lambda text: b"\xef\xbb\xbf" + text,
            lambda text: text + text,
        ]
    ),
)


def _drop(share: float) -> Callable[[Bodies], None]:
    def edit(bodies: Bodies) -> None:
        if bodies:
            del bodies[_at(share, len(bodies))]

    return edit


def _repeat(share: float, other: float) -> Callable[[Bodies], None]:
    """Write a line a second time, elsewhere."""

    def edit(bodies: Bodies) -> None:
        if bodies:
            bodies.insert(_at(other, len(bodies)), bodies[_at(share, len(bodies))])

    return edit


def _swap(share: float, other: float) -> Callable[[Bodies], None]:
    def edit(bodies: Bodies) -> None:
        if bodies:
            one, two = _at(share, len(bodies)), _at(other, len(bodies))
            bodies[one], bodies[two] = bodies[two], bodies[one]

    return edit


def _with(body: str, **fields: object) -> str:
    entry = json.loads(body)
    return json.dumps(entry | fields) if isinstance(entry, dict) else body


def _set(share: float, field: str, value: object) -> Callable[[Bodies], None]:
    def edit(bodies: Bodies) -> None:
        if bodies:
            place = _at(share, len(bodies))
            bodies[place] = _with(bodies[place], **{field: value})

    return edit


def _set_of(key: str, field: str, value: object) -> Callable[[Bodies], None]:
    """Change a field of every line with a key."""

    def edit(bodies: Bodies) -> None:
        for place, body in enumerate(bodies):
            if f'"key": "{key}"' in body:
                bodies[place] = _with(body, **{field: value})

    return edit


def _shift(first: float, last: float, by_ms: int) -> Callable[[Bodies], None]:
    """Move the clock of the lines between two places."""

    def edit(bodies: Bodies) -> None:
        places = range(_at(min(first, last), len(bodies)), _at(max(first, last), len(bodies)) + 1)
        for place in places[: len(bodies)]:
            if place < len(bodies):
                _move(bodies, place, by_ms)

    return edit


def _move(bodies: Bodies, place: int, by_ms: int) -> None:
    entry: Any = json.loads(bodies[place])
    if isinstance(entry.get("time_ms"), int | float):
        bodies[place] = _with(bodies[place], time_ms=entry["time_ms"] + by_ms)


def _squeeze(factor: float) -> Callable[[Bodies], None]:
    """Let the whole run take less, or more, time."""

    def edit(bodies: Bodies) -> None:
        times = [json.loads(body).get("time_ms") for body in bodies]
        numbers = [time for time in times if isinstance(time, int)]
        for place, time in enumerate(times):
            if isinstance(time, int):
                began = min(numbers)
                bodies[place] = _with(bodies[place], time_ms=began + int((time - began) * factor))

    return edit


_BY_MS = st.integers(-20_000, 20_000) | st.integers(-(10**13), 10**13)
OF_BODIES = st.one_of(
    st.builds(_drop, _SHARES),
    st.builds(_repeat, _SHARES, _SHARES),
    st.builds(_swap, _SHARES, _SHARES),
    st.builds(_set, _SHARES, _FIELDS, VALUES),
    st.builds(_set_of, _KEYS, st.sampled_from(["value", "metadata", "key", "event_type"]), VALUES),
    st.builds(_shift, _SHARES, _SHARES, _BY_MS),
    st.builds(_squeeze, st.floats(0, 2)),
)
MUTATIONS = st.lists(OF_BYTES, min_size=1, max_size=3)
ARBITRARY = BYTES | LINES
