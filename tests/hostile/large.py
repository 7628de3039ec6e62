"""Logs of any size, full of what is meant to cost a reader memory or time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from hybridperf.untrusted import LOG_CAP_BYTES
from tests.hostile.inputs import TOKEN

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["LARGE", "write_large"]

_PIECE_BYTES: Final = 2**20


def _entry(**fields: Any) -> bytes:
    """Return a line as a logger writes it; ``NUMBER`` in it becomes another on every line."""
    entry = {
        "namespace": "",
        "time_ms": 1_650_000_000_000,
        "event_type": "POINT_IN_TIME",
        "key": "tracked_stats",
        "value": 1,
        "metadata": {"file": "train.py", "lineno": 1},
    }
    return TOKEN + json.dumps(entry | fields, ensure_ascii=False).encode() + b"\n"


LARGE: Final = {
    "valid entries": _entry(value={"throughput": 1234.5}, metadata={"file": "a", "epoch_num": 5}),
    "plain entries": _entry(),
    "entries of many keys": _entry(key="NUMBER"),
    "tiny entries": TOKEN + b'{"key":"","time_ms":0}\n',
    "numbers too large": _entry(value=1).replace(b": 1,", b": 1e999,"),
    "lists": _entry(value=[0] * 20_000),
    "lists in lists": _entry(value=[[[[[[[[[[[1]]]]]]]]]]]),
    "objects": _entry(value={str(number): 0 for number in range(5000)}),
    "metadata": _entry(metadata={str(number): "" for number in range(5000)}),
    "emoji": _entry(value="a" * 60_000 + "\U0001f600"),  # one of them makes every letter wide
    "escapes": _entry(value="a").replace(b'"a"', b'"' + b"\\ud83d\\ude00" * 5000 + b'"'),
    "other text": b"x" * 65_535 + b"\n",
    "one line": b"x",
    "one line of tokens": TOKEN,
    "a token and a long line": TOKEN + b"x" * 1015,
    "tokens alone": TOKEN + b"\n",
    "half tokens": TOKEN[:5],
    "line ends": b"\n",
    "carriage returns": _entry().replace(b"\n", b"\r"),
    "nothing but carriage returns": b"\r",
    "keys twice": _entry().replace(b'"value": 1', b'"value": 1, "value": 2'),
    "wrong lines": TOKEN + b"{}\n",
    "bytes of no text": TOKEN + b'{"key":"\xff\xfe"}\n',
    "quotation marks": TOKEN + b'"' * 60_000 + b"\n",
    "NULs": b"\0" * 1000 + b"\n",
    "intervals that never end": _entry(key="NUMBER_start", event_type="INTERVAL_START"),
    "intervals that never began": _entry(key="NUMBER_stop", event_type="INTERVAL_END"),
    "starts of one interval": _entry(key="block_start", event_type="INTERVAL_START"),
    "evaluations": _entry(key="eval_accuracy", value=0.5, metadata={"epoch_num": 4}),
    "seeds": _entry(key="seed"),
    "a clock that swings": _entry() + _entry(time_ms=1),
}


def write_large(path: Path, head: bytes, text: bytes, size: int = LOG_CAP_BYTES) -> None:
    """Write a log of ``size`` bytes: its ``head``, and then ``text`` again and again."""
    with path.open("wb") as file:
        left = size - file.write(head[:size])
        for piece in _pieces(text):
            left -= file.write(piece[:left])
            if not left:
                return


def _pieces(text: bytes) -> Iterator[bytes]:
    number = 0
    while True:
        times = max(1, _PIECE_BYTES // len(text))
        if b"NUMBER" in text:
            numbers = range(number, number + times)
            yield b"".join(text.replace(b"NUMBER", b"%d" % each) for each in numbers)
            number += times
        else:
            piece = text * times
            while True:
                yield piece
