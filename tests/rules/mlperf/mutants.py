"""Mutations of published logs, drawn at random: what a checker of logs may meet."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

__all__ = ["MUTATIONS", "Line", "copied", "mutate", "read_lines", "write_lines"]

TOKEN = ":::MLLOG "
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, "", "x", "1", "0.75", 0, 1, -1, 0.5, 1e-9, 10**400, 10**30, 1e300, -0.0,
    float("nan"), float("inf"), -float("inf"), [], [1, 2], {}, {"BBOX": 0.4, "SEGM": 0.4},
    "closed", "open", "bert", "resnet", "lars", "sgd",
)  # fmt: skip
ODD_METADATA: tuple[Any, ...] = (
    {},
    None,
    [],
    ["epoch_num", "samples_count", "status"],
    "epoch_num",
    1,
)


@dataclass
class Line:
    """A line of a log: text before its token, and its fields or, if broken, raw text."""

    prefix: str
    fields: dict[str, Any]
    raw: str | None = None

    def text(self) -> str:
        """Return the line as it stands in a file."""
        if self.raw is not None:
            return self.raw
        return f"{self.prefix}{TOKEN}{json.dumps(self.fields)}"

    def copy(self) -> Line:
        """Return a copy whose fields and metadata may be set."""
        fields, metadata = dict(self.fields), self.fields.get("metadata")
        if isinstance(metadata, dict):
            fields["metadata"] = dict(metadata)
        return Line(self.prefix, fields, self.raw)


def read_lines(text: str) -> list[Line]:
    """Return the ``:::MLLOG`` lines of a log that is well formed."""
    lines = []
    for each in text.splitlines():
        prefix, token, payload = each.rpartition(TOKEN)
        if token:
            lines.append(Line(prefix.rpartition(TOKEN)[2], json.loads(payload)))
    return lines


def write_lines(lines: list[Line]) -> bytes:
    """Return the bytes of a log with these ``lines``."""
    return "".join(f"{line.text()}\n" for line in lines).encode("latin-1", errors="replace")


def copied(lines: list[Line]) -> list[Line]:
    """Return copies of ``lines``, as `Line.copy`."""
    return [line.copy() for line in lines]


def mutate(lines: list[Line], random: random.Random) -> tuple[str, list[Line]]:
    """Return the names of one or two mutations, and the mutated copy of ``lines``."""
    mutated = copied(lines)
    names = random.sample(sorted(MUTATIONS), random.choice((1, 1, 1, 2)))
    for name in names:
        MUTATIONS[name](mutated, random)
    return " and ".join(names), mutated


def _any(lines: list[Line], random: random.Random) -> int:
    """Return the place of a line, each key as likely as any other."""
    keys = sorted({str(line.fields.get("key")) for line in lines})
    key = random.choice(keys)
    return random.choice([n for n, each in enumerate(lines) if str(each.fields.get("key")) == key])


def _of(lines: list[Line], random: random.Random, *keys: str) -> int:
    places = [n for n, each in enumerate(lines) if each.fields.get("key") in keys]
    return random.choice(places) if places else _any(lines, random)


def _drop(lines: list[Line], random: random.Random) -> None:
    del lines[_any(lines, random)]


def _drop_key(lines: list[Line], random: random.Random) -> None:
    key = lines[_any(lines, random)].fields.get("key")
    lines[:] = [line for line in lines if line.fields.get("key") != key]


def _repeat(lines: list[Line], random: random.Random) -> None:
    line = lines[_any(lines, random)]
    lines.insert(random.randint(0, len(lines)), line.copy())


def _repeat_otherwise(lines: list[Line], random: random.Random) -> None:
    line = lines[_any(lines, random)].copy()
    line.fields["value"] = random.choice(ODD_VALUES)
    lines.insert(random.randint(0, len(lines)), line)


def _move(lines: list[Line], random: random.Random) -> None:
    line = lines.pop(_any(lines, random))
    lines.insert(random.randint(0, len(lines)), line)


_EDGES = ("init_start", "init_stop", "run_start", "run_stop", "block_start", "submission_division")


def _move_edge(lines: list[Line], random: random.Random) -> None:
    line = lines.pop(_of(lines, random, *_EDGES))
    lines.insert(random.randint(0, len(lines)), line)


def _swap_edges(lines: list[Line], random: random.Random) -> None:
    one, other = (_of(lines, random, *_EDGES) for _ in range(2))
    lines[one], lines[other] = lines[other], lines[one]


def _repeat_edge(lines: list[Line], random: random.Random) -> None:
    line = lines[_of(lines, random, *_EDGES)].copy()
    lines.insert(random.randint(0, len(lines)), line)


def _set_value(lines: list[Line], random: random.Random) -> None:
    lines[_any(lines, random)].fields["value"] = random.choice(ODD_VALUES)


def _scale_value(lines: list[Line], random: random.Random) -> None:
    numbers = [n for n, each in enumerate(lines) if type(each.fields.get("value")) in (int, float)]
    if numbers:
        # A mutation before may have made the key no text, or dropped it.
        of = {n: str(lines[n].fields.get("key")) for n in numbers}
        key = random.choice(sorted(set(of.values())))
        line = lines[random.choice([n for n in numbers if of[n] == key])]
        factor = random.choice((2, 0.5, 1.5, 1 + 1e-12, 1 + 1e-6, -1, 1.0, 10, 1e-3))
        line.fields["value"] *= factor


def _spoil_evaluations(lines: list[Line], random: random.Random) -> None:
    new = random.choice(
        (0.0, 0.5, 0.7199999, 0.72, 0.759, 1.0, 2.65, 0.058, 0.924, 1e9, "0.8", None)
    )
    for line in lines:
        if line.fields.get("key") in ("eval_accuracy", "averaged_validation_loss"):
            line.fields["value"] = new


def _drop_metadata(lines: list[Line], random: random.Random) -> None:
    metadata = lines[_any(lines, random)].fields.get("metadata")
    if isinstance(metadata, dict) and metadata:
        del metadata[random.choice(sorted(metadata))]


def _set_metadata(lines: list[Line], random: random.Random) -> None:
    line = lines[_any(lines, random)]
    metadata = line.fields.get("metadata")
    if isinstance(metadata, dict) and metadata and random.random() < 0.7:
        metadata[random.choice(sorted(metadata))] = random.choice(ODD_VALUES)
    else:
        line.fields["metadata"] = random.choice(ODD_METADATA)


def _swap_counts(lines: list[Line], random: random.Random) -> None:
    """Count steps, samples or epochs in place of what the evaluations count."""
    old, new = random.sample(("epoch_num", "samples_count", "step_num", "first_epoch_num"), 2)
    key = lines[_any(lines, random)].fields.get("key")
    for line in lines:
        metadata = line.fields.get("metadata")
        if line.fields.get("key") == key and isinstance(metadata, dict) and old in metadata:
            metadata[new] = metadata.pop(old)


def _set_time(lines: list[Line], random: random.Random) -> None:
    line = lines[_any(lines, random)]
    now = line.fields.get("time_ms")
    odd = (0, -1, 10**12, None, "x", [1], 5e11, now, True, "12", 10**400, float("nan"))
    line.fields["time_ms"] = random.choice(odd)


def _stretch_init(lines: list[Line], random: random.Random) -> None:
    """Let initialisation take the limit, and a millisecond more or less."""
    starts = [line for line in lines if line.fields.get("key") == "init_start"]
    times = [line.fields.get("time_ms") for line in starts]
    start = min((time_ms for time_ms in times if isinstance(time_ms, int)), default=None)
    if start is None:
        return
    minutes = random.choice((29, 30, 30, 30, 240, 240, 241))
    lines[_of(lines, random, "init_stop")].fields["time_ms"] = (
        start + minutes * 60_000 + random.choice((-1, 0, 1))
    )


def _drop_field(lines: list[Line], random: random.Random) -> None:
    lines[_any(lines, random)].fields.pop(
        random.choice(("namespace", "event_type", "key", "value", "time_ms", "metadata")), None
    )


def _set_key(lines: list[Line], random: random.Random) -> None:
    lines[_any(lines, random)].fields["key"] = random.choice(
        (None, 5, [], {}, "", "run_stopp", True)
    )


def _break(lines: list[Line], random: random.Random) -> None:
    """Break the text of a line."""
    line = lines[_any(lines, random)]
    text = line.text()
    line.raw = random.choice(
        (
            text.replace(TOKEN, TOKEN.rstrip()),
            text[: len(text) // 2],
            text + " x",
            text + "\xa0",
            text + "\x85 ",
            text.replace(TOKEN, TOKEN + TOKEN),
            "progress 5%\r" + text + "\rprogress 6%",
            text + "\r" + text,
            TOKEN,
            TOKEN.rstrip(),
            TOKEN + "[]",
            TOKEN + "{}",
            text.replace('"key"', '"key": "other", "key"'),
            text.replace('"value"', '"value": 5, "value"'),
            text.replace('": ', '":\t'),
            text.replace("_", "_\x01", 1),
            text + "\x00",
            "\xff\xfe" + text,
        )
    )


def _tensors(lines: list[Line], random: random.Random) -> None:
    """Log a tensor twice, a tensor more, or none of one."""
    place = _of(lines, random, "weights_initialization")
    match random.randrange(3):
        case 0:
            del lines[place]
        case 1:
            lines.append(lines[place].copy())
        case _:
            more = lines[place].copy()
            if isinstance(more.fields.get("metadata"), dict):
                more.fields["metadata"]["tensor"] = random.choice(("new_tensor", 5, None))
            lines.append(more)


def _division(lines: list[Line], random: random.Random) -> None:
    place = _of(lines, random, "submission_division")
    lines[place].fields["value"] = random.choice(
        ("open", "closed", "Closed", "openx", "", ["open"])
    )


def _empty(lines: list[Line], random: random.Random) -> None:
    place = _of(lines, random, "submission_org", "submission_platform", "train_samples")
    lines[place].fields["value"] = random.choice(("", None, 0, "x"))


MUTATIONS: dict[str, Callable[[list[Line], random.Random], None]] = {
    "a line dropped": _drop,
    "a key dropped": _drop_key,
    "a line repeated": _repeat,
    "a line repeated with another value": _repeat_otherwise,
    "a line moved": _move,
    "an edge moved": _move_edge,
    "edges swapped": _swap_edges,
    "an edge repeated": _repeat_edge,
    "an odd value": _set_value,
    "a number scaled": _scale_value,
    "other accuracies": _spoil_evaluations,
    "metadata dropped": _drop_metadata,
    "odd metadata": _set_metadata,
    "another count": _swap_counts,
    "an odd time": _set_time,
    "initialisation stretched": _stretch_init,
    "a field dropped": _drop_field,
    "an odd key": _set_key,
    "a line broken": _break,
    "tensors changed": _tensors,
    "another division": _division,
    "an empty value": _empty,
}
