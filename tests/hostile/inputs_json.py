"""Hostile lines and hostile JSON in them."""

from __future__ import annotations

import json

from hybridperf.log import keys
from hybridperf.untrusted import LINE_CAP_BYTES
from tests.hostile.inputs import (
    RUN,
    TOKEN,
    Hostile,
    bodies,
    content,
    every_log,
    field,
    hostile,
    line,
)
from tests.packages import place

_ENTRY = b'{"time_ms": 1, "event_type": "POINT_IN_TIME", "key": "x", "value": 1, "metadata": {}}'
_ESCAPES = {
    "terminal colours": "\x1b[31m\x1b[2J",
    "a window title": "\x1b]0;owned\x07",
    "C1 controls": "\x9b31m\x85",
    "bidirectional overrides": "\u202egnirts\u2066",
    "zero-width characters": "se\u200bed\u200d\ufeff",
    "line and paragraph separators": "a\u2028b\u2029c",
    "CR and LF": "a\r\nvalid",
    "lone surrogates": "\ud800\udfff\udc00",
    "NUL and DEL": "\0\x7f",
    "noncharacters and private use": "\uffff\ue000\U0010ffff",
}
_WRONG_TYPES = {
    "time_ms": ("null", "true", '"1"', "1.5", "[]", "{}", "1e3", "-1", "NaN", "1" * 21),
    "event_type": ("null", "true", "5", '""', "[]", "{}", '"interval_end"', '"\\u0000"'),
    "key": ("null", "true", "5", "[]", "{}", "-Infinity"),
    "metadata": ("null", "true", "5", '""', "[]", '"{}"', "[{}]"),
}
_NO_JSON = (
    "NaN",
    "Infinity",
    "-Infinity",
    "1e400",
    "-1e400",
    "9" * 21,
    "-" + "9" * 20,
    "9" * 5000,
    "0x10",
    "1_000",
    ".5",
    "01",
    "+1",
    "1.",
    "nan",
    "True",
    "'1'",
    "\ufeff1",
    "1,",
)
_NO_QUALITY = (
    '"0.9"',
    "null",
    "true",
    "[]",
    "{}",
    "-0",
    "-0.0",
    "1e308",
    "-1e308",
    "5e-324",
    "9" * 20,
    "[0.99]",
    '"NaN"',
    '{"0.99": 0.99}',
    '"\\u001b[31m0.99"',
)


def _nested(opening: str, count: int, closing: str) -> str:
    return opening * count + "1" + closing * count


def _padded(length: int) -> bytes:
    """Return an entry of ``length`` bytes with the space before it, as the cap counts."""
    head, tail = _ENTRY[:-2], b"}}"
    fill = length - 1 - len(head) - len(tail) - len(b'"p": ""')
    return head + b'"p": "' + b"x" * fill + b'"' + tail


def _spelled(key: str, text: str) -> Hostile:
    return field(f"{key} as {text:.30}", keys.RUN_STOP, 0, "log.line", **{key: text})


def _escaped(name: str, text: str) -> list[Hostile]:
    """Write ``text`` into each field that a finding prints."""
    word = json.dumps(text)
    return [
        field(f"{name} as a key", keys.RUN_STOP, 0, "log.keys", "log.intervals", key=word),
        field(f"{name} as an event", keys.RUN_STOP, 0, "log.line", event_type=word),
        field(f"{name} as a quality", keys.EVAL_ACCURACY, -1, "run.target", value=word),
        field(f"{name} as a benchmark", keys.SUBMISSION_BENCHMARK, 0, "run.benchmark", value=word),
        field(f"{name} as an organisation", keys.SUBMISSION_ORG, 0, "result.place", value=word),
        field(f"{name} as a plan", keys.PLAN, 0, "run.manifest", value=word),
        field(
            f"{name} as a status",
            keys.RUN_STOP,
            0,
            "run.target",
            metadata=json.dumps({"status": text}),
        ),
        bodies(
            f"{name} as the name of an open interval",
            lambda lines: lines.insert(
                place(lines, keys.RUN_STOP),
                lines[place(lines, keys.RUN_STOP)]
                .replace("INTERVAL_END", "INTERVAL_START")
                .replace('"run_stop"', json.dumps(f"{text}_start")),
            ),
            "log.intervals",
        ),
    ]


JSON = [
    *(_spelled(key, text) for key, texts in _WRONG_TYPES.items() for text in texts),
    *(
        field(f"quality {text:.30}", keys.EVAL_ACCURACY, -1, "log.line", "run.target", value=text)
        for text in _NO_JSON
    ),
    *(
        field(f"a quality that is {text:.30}", keys.EVAL_ACCURACY, -1, "run.target", value=text)
        for text in _NO_QUALITY
    ),
    *(one for name, text in _ESCAPES.items() for one in _escaped(name, text)),
    *(
        line(f"a line that is {payload.decode():.30}", payload)
        for payload in (b"null", b"5", b"[]", b'"{}"', b"true", b"{}", b"", b"{", b"}", b'"', b"\\")
    ),
    line("17 lists", b'{"value": ' + _nested("[", 17, "]").encode() + b"}"),
    line("17 objects", b'{"value": ' + _nested('{"a":', 17, "}").encode() + b"}"),
    line("lists and objects in turn", b'{"value": ' + _nested('[{"a":', 9, "}]").encode() + b"}"),
    line("30000 lists", b'{"value": ' + _nested("[", 30_000, "]").encode() + b"}"),
    line("60000 brackets that never close", b"[" * 60_000),
    line("60000 brackets that never opened", b"]" * 60_000),
    line("60000 quotation marks", b'{"' + b'"' * 60_000),
    line("60000 backslashes in a string", b'{"' + b"\\" * 60_000),
    line("a key twice", _ENTRY[:-1] + b', "value": 2}'),
    line("metadata twice", _ENTRY[:-1] + b', "metadata": {}}'),
    line("a key twice in metadata", _ENTRY[:-2] + b'"a": 1, "a": 1}}'),
    line("a key twice, spelled in two ways", _ENTRY[:-1] + b', "val\\u0075e": 2}'),
    line("a key twice in a list", _ENTRY[:-2] + b'"a": [{"b": 1, "b": 2}]}}'),
    line("the empty key twice", _ENTRY[:-2] + b'"": 1, "": 2}}'),
    line("NaN deep inside", _ENTRY[:-2] + b'"a": [[NaN]]}}'),
    line("1e400 deep inside", _ENTRY[:-2] + b'"a": {"b": [1e400]}}}'),
    line("text after the object", _ENTRY + b" x"),
    line("two objects", _ENTRY + _ENTRY),
    line("two tokens", _ENTRY + b" " + TOKEN + _ENTRY),
    line("a comma too many", _ENTRY[:-1] + b",}"),
    line("a comment", _ENTRY[:-1] + b"/* */}"),
    *(line(f"cut off after {cut} bytes", _ENTRY[:cut]) for cut in (1, 5, 12, 40, 70, 84)),
    line("a byte order mark", b"\xef\xbb\xbf" + _ENTRY),
    line("UTF-16", _ENTRY.decode().encode("utf-16")),
    line("UTF-32", _ENTRY.decode().encode("utf-32-le")),
    line("Latin-1", _ENTRY.replace(b'"x"', b'"\xe9"')),
    line("a surrogate in UTF-8", _ENTRY.replace(b'"x"', b'"\xed\xa0\x80"')),
    line("overlong UTF-8", _ENTRY.replace(b'"x"', b'"\xc0\xaf"')),
    line("a character beyond Unicode", _ENTRY.replace(b'"x"', b'"\xf4\x90\x80\x80"')),
    line("half a character", _ENTRY + b"\xe2\x82"),
    line("NUL in a string", _ENTRY.replace(b'"x"', b'"\0"')),
    line("NUL between fields", _ENTRY.replace(b", ", b",\0")),
    line("a vertical tab between fields", _ENTRY.replace(b", ", b",\v")),
    line("a line separator between fields", _ENTRY.replace(b", ", ",\u2028".encode())),
    line("no-break spaces between fields", _ENTRY.replace(b", ", ",\xa0".encode())),
    line("an escape that is none", _ENTRY.replace(b'"x"', rb'"\x1b"')),
    line("half an escape", _ENTRY.replace(b'"x"', rb'"\u12"')),
    line("the shortest line", b"x"),
    line("64 KiB - 1", _padded(LINE_CAP_BYTES - 1), "log.chain"),
    line("64 KiB", _padded(LINE_CAP_BYTES), "log.chain"),
    line("64 KiB + 1", _padded(LINE_CAP_BYTES + 1)),
    line("64 KiB of spaces", b" " * LINE_CAP_BYTES),
    content("only CR ends lines", lambda text: text.replace(b"\n", b"\r"), "log.line"),
    content("CR in the middle", lambda text: text.replace(b', "key"', b',\r"key"'), "log.chain"),
    content("NUL first", lambda text: b"\0" + text, "run.manifest"),
    content("a byte order mark first", lambda text: b"\xef\xbb\xbf" + text, "run.manifest"),
    content("all in UTF-16", lambda text: text.decode().encode("utf-16"), "log.file"),
    content("gibberish", lambda _text: bytes(range(256)) * 100, "log.file"),
    content("one character", lambda _text: b":", "log.file"),
    content("tokens alone", lambda _text: TOKEN * 1000, "log.line"),
    content(
        "one line of 60 MB with a token",
        lambda _text: TOKEN + b"x" * 60_000_000,
        "log.line",
        large=True,
    ),
    content("one line of 60 MB of tokens", lambda _text: TOKEN * 6_000_000, "log.line", large=True),
    content("one line of 60 MB", lambda _text: b"x" * 60_000_000, "log.file", large=True),
    content("a million short lines", lambda _text: b"x\n" * 1_000_000, "log.file", large=True),
    content(
        "200000 lines that are {}",
        lambda _text: (TOKEN + b"{}\n") * 200_000,
        "log.line",
        large=True,
    ),
    hostile(
        "100000 entries without a hash",
        lambda package: (package.folder / f"result_{RUN}.txt").write_bytes(
            (TOKEN + _ENTRY + b"\n") * 100_000
        ),
        "log.file",
        large=True,
    ),
    hostile(
        "1e308 twice, and its sum",
        lambda package: every_log(package, lambda lines: _large_rates(lines)),
        "run.target",
    ),
]


def _large_rates(lines: list[str]) -> None:
    for index, body in enumerate(lines):
        entry = json.loads(body)
        if entry["key"] == keys.TRACKED_STATS:
            rates = dict.fromkeys(("throughput", "bubble", "exposed_communication"), 1e308)
            lines[index] = json.dumps(entry | {"value": rates})
        elif entry["key"] == keys.EVAL_ACCURACY:
            lines[index] = json.dumps(entry | {"value": 1e308})
