"""Hostile runs: the official checker's inputs, clocks, intervals, hash chains and manifests."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hybridperf.log import keys
from tests.hostile.inputs import (
    RUN,
    TOKEN,
    bodies,
    content,
    every_log,
    facts,
    field,
    hostile,
    line,
    manifest,
    moved,
    rewritten,
    system,
    text_of,
    without,
)
from tests.packages import START_MS, change, log_path, place, shift

if TYPE_CHECKING:
    from collections.abc import Callable

    from hybridperf.log.package import Package

_YEAR_10000_MS = 253_402_300_800_000
_HASH = b'"sha256": "'


def _evaluations_after_the_stop(lines: list[str]) -> None:
    for index, body in enumerate(lines):
        entry = json.loads(body)
        if entry["key"] == keys.EVAL_ACCURACY:
            lines[index] = json.dumps(entry | {"time_ms": entry["time_ms"] + 9_000_000})


def _stop_from_start(after_ms: int) -> Callable[[list[str]], None]:
    def edit(lines: list[str]) -> None:
        start = json.loads(lines[place(lines, keys.RUN_START)])
        change(lines, keys.RUN_STOP, time_ms=start["time_ms"] + after_ms)

    return edit


def _in_one_ms(lines: list[str]) -> None:
    first = place(lines, keys.RUN_START)
    start = json.loads(lines[first])["time_ms"]
    for index in range(first + 1, len(lines)):
        lines[index] = json.dumps(json.loads(lines[index]) | {"time_ms": start + 1})


def _without_hash(package: Package) -> None:
    path = log_path(package, RUN)
    lines = path.read_text().splitlines(keepends=True)
    lines[5] = lines[5].split(', "sha256"')[0] + "}\n"
    path.write_text("".join(lines))


def _spliced(package: Package) -> None:
    """Take the second half of another run, hashes and all."""
    one, other = (log_path(package, each).read_text().splitlines(True) for each in (RUN, 3))
    log_path(package, RUN).write_text("".join(one[:30] + other[30:]))


def _copied(package: Package) -> None:
    """Publish one run twice."""
    log_path(package, RUN).write_bytes(log_path(package, 3).read_bytes())


def _faster_and_chained(package: Package) -> None:
    """Shorten the run and chain it anew, but leave its manifest."""
    log_path(package, RUN).write_bytes(
        rewritten(package, lambda lines: change(lines, keys.RUN_STOP, time_ms=START_MS))
    )


def _halve(lines: list[str]) -> None:
    del lines[len(lines) // 2 :]


def _hash(edit: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Return an edit of the 64 digits of the sixth line's hash."""

    def change_hash(text: bytes) -> bytes:
        lines = text.splitlines(keepends=True)
        head, mark, tail = lines[5].partition(_HASH)
        lines[5] = head + mark + edit(tail[:64]) + tail[64:]
        return b"".join(lines)

    return change_hash


def _hash_in_the_middle(text: bytes) -> bytes:
    lines = text.splitlines(keepends=True)
    head, _, tail = lines[5].partition(b', "sha256": "')
    start = head.replace(TOKEN + b"{", TOKEN + b'{"sha256": "' + tail[:64] + b'", ')
    lines[5] = start + b"}\n"
    return b"".join(lines)


def _hash_twice(text: bytes) -> bytes:
    lines = text.splitlines(keepends=True)
    head, mark, tail = lines[5].partition(b', "sha256": "')
    lines[5] = head + mark + tail[:64] + b'"' + mark + tail
    return b"".join(lines)


def _unlike(key: str, event: str, *names: str) -> Callable[[list[str]], None]:
    """Return an edit that inserts edges with ``names`` before the first ``key``."""

    def edit(lines: list[str]) -> None:
        index = place(lines, key)
        entry = json.loads(lines[index])
        lines[index:index] = [
            json.dumps(entry | {"key": name, "event_type": event}) for name in names
        ]

    return edit


OFFICIAL = [  # on which the official checker was measured; see docs and the notes, section 4.1
    *(
        field(f"official: eval_accuracy {text:.8}", keys.EVAL_ACCURACY, 0, "log.line", value=text)
        for text in ("NaN", "Infinity", "1e400", "9" * 5000)
    ),
    field("official: value is a string", keys.EVAL_ACCURACY, 0, "run.target", value='"0.9"'),
    line("official: 100000 levels", b'{"value": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    line("official: 5", b"5"),
    line("official: no metadata", b'{"time_ms": 1, "event_type": "POINT_IN_TIME", "key": "x"}'),
    field("official: time_ms null", keys.RUN_STOP, 0, "log.line", time_ms="null"),
    field("official: value twice", keys.EVAL_ACCURACY, 0, "log.line", value='0.1, "value": 0.99'),
    field("official: time_ms NaN at run_stop", keys.RUN_STOP, 0, "log.line", time_ms="NaN"),
    bodies("official: run_stop 1 s before run_start", _stop_from_start(-1000), "log.time"),
    bodies("official: run_stop 1 ms after run_start", _stop_from_start(1), "run.clocks"),
    bodies("official: evaluations after the stop", _evaluations_after_the_stop, "log.time"),
    field(
        "official: organisation is an object",
        keys.SUBMISSION_ORG,
        0,
        "result.place",
        value='{"a": 1}',
    ),
    bodies("official: no seed", lambda lines: lines.pop(place(lines, keys.SEED)), "log.keys"),
    field(
        "official: script as organisation",
        keys.SUBMISSION_ORG,
        0,
        "result.place",
        value='"<script>alert(1)</script>"',
    ),
    field(
        "official: formula as organisation",
        keys.SUBMISSION_ORG,
        0,
        "result.place",
        value='"=HYPERLINK(\\"http://x\\")"',
    ),
    content("official: two runs concatenated", lambda text: text + text, "log.keys", "log.chain"),
    content("official: truncated", lambda text: text[: len(text) // 2], "log.keys"),
    content("official: empty", lambda _text: b"", "log.file"),
    content(
        "official: a tail that is not UTF-8", lambda text: text + b"\xff\xfe\n", "run.manifest"
    ),
    content(
        "official: one line of 60 MB",
        lambda text: text + b"x" * 60_000_000,
        "run.manifest",
        large=True,
    ),
]
CLOCKS = [
    moved("a clock that runs backwards", lambda index, _time: START_MS - index, "log.time"),
    moved("a clock before the epoch", lambda _index, time: time - 2 * START_MS, "log.line"),
    moved("a clock that stands still", lambda _index, _time: START_MS, "run.clocks"),
    moved("a clock that stands at zero", lambda _index, _time: 0, "run.clocks"),
    moved("a clock after the year 9999", lambda _index, time: time + _YEAR_10000_MS, "log.line"),
    moved("a clock in seconds", lambda _index, time: time // 1000, "run.clocks"),
    moved("a clock in nanoseconds", lambda _index, time: time * 1_000_000, "log.line"),
    moved(
        "a clock twice as fast",
        lambda _index, time: START_MS + (time - START_MS) // 2,
        "run.clocks",
    ),
    moved("a clock that swings", lambda index, time: time + index % 2 * 60_000, "log.time"),
    bodies("a run of 1 ms", _in_one_ms, "run.clocks"),
    bodies("a run of no time", _stop_from_start(0), "log.time", "run.clocks"),
    bodies(
        "a leap of 1000 years", lambda lines: shift(lines, 40, 31_557_600_000_000), "run.clocks"
    ),
    *(
        field(f"stop at {text}", keys.RUN_STOP, 0, "log.time", "run.clocks", time_ms=text)
        for text in ("0", "-0", "1")
    ),
    *(
        field(f"stop at {text}", keys.RUN_STOP, 0, "log.line", time_ms=text)
        for text in ("9" * 20, "-9223372036854775808", "253402300800000")
    ),
]
INTERVALS = [
    bodies(
        f"{len(names)} edges {event} {names[0]}",
        _unlike(keys.RUN_STOP, event, *names),
        "log.intervals",
    )
    for event, names in (
        ("INTERVAL_START", ("_start",)),
        ("INTERVAL_START", ("start", "a_start")),
        ("INTERVAL_START", ("run_start", "run_start", "run_start")),
        ("INTERVAL_END", ("_stop",)),
        ("INTERVAL_END", ("a_stop", "b_stop", "c_stop", "d_stop")),
        ("INTERVAL_END", ("init_stop", "run_stop")),
        ("INTERVAL_START", tuple(f"{number}_start" for number in range(5000))),
        ("INTERVAL_END", tuple(f"{number}_stop" for number in range(5001))),
    )
]
KEYS = [
    field("a key in capitals", keys.RUN_STOP, 0, "log.keys", key='"RUN_STOP"'),
    field("a key with a space", keys.RUN_STOP, 0, "log.keys", key='"run_stop "'),
    field("a key in Cyrillic", keys.RUN_STOP, 0, "log.keys", key='"run_st\\u043ep"'),
    field("a key of full width", keys.SEED, 0, "log.keys", key='"\\uff53eed"'),
    field("a key with a zero-width joiner", keys.SEED, 0, "log.keys", key='"se\\u200ded"'),
    field("a key of 60000 characters", keys.SEED, 0, "log.keys", key=f'"{"s" * 60_000}"'),
    field("a key that is empty", keys.SEED, 0, "log.keys", key='""'),
    field("__class__ as a key", keys.SEED, 0, "log.keys", key='"__class__"'),
    field(
        "../../etc/passwd as a benchmark",
        keys.SUBMISSION_BENCHMARK,
        0,
        "run.benchmark",
        value='"../../../../etc/passwd"',
    ),
    field(
        "/dev/zero as a benchmark",
        keys.SUBMISSION_BENCHMARK,
        0,
        "run.benchmark",
        value='"/dev/zero"',
    ),
    field(
        "5000 hyperparameters",
        keys.HYPERPARAMETERS,
        0,
        "run.hyperparameters",
        value=json.dumps({f"{number}": 1 for number in range(5000)}),
    ),
]
CHAIN = [
    hostile("half of another run", _spliced, "log.chain", "run.manifest"),
    hostile("another run's log", _copied, "result.seeds", "run.manifest"),
    hostile("edited and chained anew", _faster_and_chained, "run.manifest", "run.clocks"),
    hostile("a line without its hash", _without_hash, "log.chain"),
    content("a hash in capitals", _hash(bytes.upper), "log.chain"),
    content("a hash that is too short", _hash(lambda digest: digest[:63]), "log.chain"),
    content("a hash that is too long", _hash(lambda digest: digest + b"0"), "log.chain"),
    content("a hash that is empty", _hash(lambda _digest: b""), "log.chain"),
    content("a hash of zeros", _hash(lambda _digest: b"0" * 64), "log.chain"),
    content("a hash of no digits", _hash(lambda _digest: b"z" * 64), "log.chain"),
    content("a hash in Unicode digits", _hash(lambda _digest: "٣".encode() * 32), "log.chain"),
    content("a hash in the middle", _hash_in_the_middle, "log.chain"),
    content("a hash twice", _hash_twice, "log.chain"),
    content(
        "two lines swapped",
        lambda text: b"".join(
            [*(lines := text.splitlines(True))[:7], lines[8], lines[7], *lines[9:]]
        ),
        "log.chain",
    ),
    content(
        "a line twice",
        lambda text: b"".join([*(lines := text.splitlines(True))[:7], lines[6], *lines[7:]]),
        "log.chain",
    ),
    content(
        "a line removed",
        lambda text: b"".join([*(lines := text.splitlines(True))[:7], *lines[8:]]),
        "log.chain",
    ),
    content(
        "a space more in a line", lambda text: text.replace(b'"key":', b'"key": ', 1), "log.chain"
    ),
    content("no head", lambda text: b"".join(text.splitlines(True)[12:]), "log.chain"),
]
_NO_RESCORING: tuple[object, ...] = (
    5,
    [],
    "x",
    {},
    {"quality": "0.982"},
    {"quality": True},
    {"quality": 1e308},
)
_NO_CLOCK: tuple[object, ...] = (None, 5, [], {"run_s": "12"}, {"run_s": -1e308}, {"run_s": {}})
_NO_CODE: tuple[object, ...] = (None, 5, [], {"suite_sha256": {}})
_DEEP = b'{"a": ' * 100_000 + b"1" + b"}" * 100_000
_TEXTS = {
    "empty": b"",
    "an array": b"[]",
    "null": b"null",
    "a number": b"5",
    "cut off": b'{"seed": ',
    "5 MB": b'{"a": "' + b"x" * 5_000_000 + b'"}',
    "deep": _DEEP,
    "of NaN": b'{"seed": NaN}',
    "of 1e999": b'{"seed": [1e999]}',
    "of a key twice": b'{"seed": 1, "seed": 2}',
    "in UTF-16": '{"seed": 1}'.encode("utf-16"),
    "with a byte order mark": b'\xef\xbb\xbf{"seed": 1}',
    "of gibberish": bytes(range(256)),
    "of NULs": b"\0" * 1000,
    "of YAML": b"seed: !!python/object/apply:os.system [id]",
    "of a pickle": b"cos\nsystem\n(S'id'\ntR.",
}
_WRONG: dict[str, tuple[object, ...]] = {
    "outcome": (5, None, [], {}, ["success"], True, "\x1b[31m\u202e", "success "),
    "attempt": ("2", None, 2.5, [], True, -2, 10**19),
    "seed": ("1002", [], {}, "\ud800"),
    "log": (None, [], 5, "x", {"sha256": []}, {"sha256": {}}),
    "task": (None, [], 5, "x", {"runs": "5", "target": "0.98"}, {"target": [], "runs": 10**19}),
    "data_sha256": (None, [], {}, 5),
}
MANIFESTS = [
    *(manifest(f"a manifest {name}", text, "result.manifest") for name, text in _TEXTS.items()),
    *(system(f"a system file {name}", text, "system.file") for name, text in _TEXTS.items()),
    *(
        facts(f"{key} {value!r:.30} in a manifest", "run.manifest", **{key: value})
        for key, values in _WRONG.items()
        for value in values
    ),
    *(
        facts(f"rescoring {value!r:.30} in a manifest", "run.rescoring", rescoring=value)
        for value in _NO_RESCORING
    ),
    *(
        facts(f"supervisor {value!r:.30} in a manifest", "run.clocks", supervisor=value)
        for value in _NO_CLOCK
    ),
    *(
        facts(f"code {value!r:.30} in a manifest", "result.configuration", code=value)
        for value in _NO_CODE
    ),
    facts("system is no object", "result.system", system=[]),
    manifest("an empty object as a manifest", b"{}", "run.manifest"),
    system("another system", b'{"system_name": "\\u001b[31m"}', "result.system"),
    hostile(
        "a system file of wrong types",
        lambda package: package.system_file.write_text(
            json.dumps(
                {"framework": 5, "system_name": [], "number_of_nodes": "\u202e", "a": {"b": []}}
            )
        ),
        "result.system",
    ),
    hostile("two runs' manifests swapped", lambda package: _swap(package, ".json"), "run.manifest"),
    hostile("two runs' logs swapped", lambda package: _swap(package, ".txt"), "run.manifest"),
    hostile(
        "no manifest at all",
        without(*(f"result_{number}.json" for number in range(5))),
        "run.manifest",
    ),
    hostile(
        "a forged run in every file",
        lambda package: every_log(package, text_of(keys.EVAL_ACCURACY, -1, value="1")),
        "run.rescoring",
    ),
    bodies("half of a log", _halve, "log.keys"),
]


def _swap(package: Package, suffix: str) -> None:
    one, other = (package.folder / f"result_{number}{suffix}" for number in (RUN, 3))
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


RUNS = {
    "official": OFFICIAL,
    "clock": CLOCKS,
    "interval": INTERVALS,
    "key": KEYS,
    "chain": CHAIN,
    "manifest": MANIFESTS,
}
