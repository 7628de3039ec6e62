"""The one text form of a plan, and its short form for file names."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Final

from suite.findings import Finding
from suite.refusal import ExitCode, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from suite.plan.plan import ParallelPlan

__all__ = ["KEYS", "parse_fields", "write_slug", "write_text"]

_SWITCH: Final = ("off", "on")
# What may stand after a key, its default first; None for a whole number.
KEYS: Final[dict[str, tuple[str, ...] | None]] = {
    "dp": None,
    "sync": ("overlapped", "blocking"),
    "zero": ("0", "1", "2", "3"),
    "shard": None,
    "offload": ("none", "cpu"),
    "tp": None,
    "sp": _SWITCH,
    "pp": None,
    "schedule": ("gpipe", "1f1b", "interleaved", "zbv"),
    "stages": None,
    "microbatches": None,
    "recompute": ("none", "full"),
    "precision": ("fp32", "bf16", "fp16"),
    "compile": _SWITCH,
    "bn": ("micro", "deferred", "sync"),
}


def parse_fields(text: str) -> dict[str, Any]:
    """Return the fields of the plan that ``text`` describes.

    Raises:
        Refusal: exit status 2, naming the key and what may stand there.
    """
    values = dict(_pairs(text))
    fields: dict[str, Any] = {key: _value(text, key, value) for key, value in values.items()}
    pp, schedule = fields.get("pp", 1), fields.get("schedule")
    if schedule is not None and pp == 1:
        raise _refuse(
            text, "no schedule where pp=1", f"schedule={schedule}", "add pp=2 or drop schedule"
        )
    if pp > 1:
        schedule = fields.setdefault("schedule", "1f1b")
    fields.setdefault("microbatches", pp)
    if "stages" in fields and schedule != "interleaved":
        raise _refuse(
            text,
            "stages only under schedule=interleaved",
            f"stages={fields['stages']} with schedule={schedule or 'none'}",
            "drop stages",
        )
    if schedule in {"interleaved", "zbv"}:
        fields.setdefault("stages", 2)
    if fields.get("stages") == 1:
        raise _refuse(
            text, "at least 2 stages a rank under schedule=interleaved", "stages=1", "use 1f1b"
        )
    if fields.get("zero") and fields.get("shard") == fields.get("dp", 1):
        del fields["shard"]
    return fields


def write_text(plan: ParallelPlan) -> str:
    """Return the canonical text of ``plan``: its keys in their order, defaults left out."""
    return ",".join(f"{key}={word}" for key, word in _words(plan)) or "dp=1"


def write_slug(plan: ParallelPlan) -> str:
    """Return ``plan`` as a part of a file's name, such as ``dp2-pp2-1f1b-m4``."""
    whole = {"schedule": "", "precision": "", "sync": "", "microbatches": "m", "recompute": "r"}
    words = dict(_words(plan))
    parts = [f"dp{plan.dp}"]
    for key in KEYS:
        if key in words and key != "dp":
            word = words[key]
            parts.append(key if word == "on" else f"{whole.get(key, key)}{word}")
    return "-".join(parts)


def _words(plan: ParallelPlan) -> Iterator[tuple[str, str]]:
    for key, choices in KEYS.items():
        value = getattr(plan, key)
        if key == "recompute":
            word = "full" if value == 1 else str(value or "none")
        elif isinstance(value, bool):
            word = _SWITCH[value]
        else:
            word = str(value)
        if key == "microbatches" and plan.schedule is not None:
            default = ""  # a pipeline always says them
        elif key == "stages":
            default = str(plan.stages) if plan.schedule != "interleaved" else ""
        elif key in {"schedule", "shard"}:
            default = "None"
        else:
            default = choices[0] if choices else "1"
        if word != default:
            yield key, word


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise _refuse(
                text, "key=value pairs divided by commas", repr(part), 'write "dp=2,pp=2"'
            )
        if key not in KEYS:
            near = difflib.get_close_matches(key, KEYS)
            like = max(near, key=key.startswith, default="")
            hint = f"did you mean {like}?" if near else "drop it"
            raise _refuse(text, f"keys out of {', '.join(KEYS)}", repr(key), hint)
        if key in seen:
            raise _refuse(text, "each key once", f"{key} twice", f"keep one {key}")
        seen.add(key)
        yield key, value


def _value(text: str, key: str, value: str) -> str | int | bool:
    choices = KEYS[key]
    if choices is None:
        return _positive(text, key, value)
    if key == "recompute" and value not in choices:
        return _positive(text, key, value, "none, full or ")
    if value not in choices:
        raise _refuse(text, f"{key} to be one of {', '.join(choices)}", value)
    if choices is _SWITCH or key in {"zero", "recompute"}:
        number = choices.index(value)
        return bool(number) if choices is _SWITCH else number
    return value


def _positive(text: str, key: str, value: str, others: str = "") -> int:
    if not (value.isascii() and value.isdigit() and 0 < len(value) < 7 and int(value) > 0):
        expected = f"{key} to be {others}a whole number from 1 to 999999"
        raise _refuse(text, expected, repr(value))
    return int(value)


def _refuse(text: str, expected: str, found: str, remedy: str = "correct it") -> Refusal:
    finding = Finding("plan.text", expected, found, remedy, path=f"plan {text!r}")
    return Refusal(finding, ExitCode.USAGE)
