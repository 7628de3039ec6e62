"""The text forms of a plan: canonical, in file names, on pages, and for shell completion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding
from hybridperf.plan.fields import FIELDS, LARGEST_NUMBER, Field
from hybridperf.plan.presets import expand_presets
from hybridperf.spelling import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridperf.plan.fields import PlanFields

__all__ = ["Chip", "complete_plan", "plan_chips", "read_fields", "write_slug", "write_text"]


def read_fields(text: str) -> dict[str, Any]:
    """Parse the fields stated in ``text``, such as ``dp=2,pp=2``, with keys in any order.

    Presets are expanded first.

    Raises:
        UserError: exit status 2, naming the key and its possible values.
    """
    values: dict[str, Any] = {}
    for part in expand_presets(text).split(","):
        key, equals, word = (piece.strip() for piece in part.partition("="))
        if not equals:
            expected = "key=value pairs divided by commas"
            raise _refuse(text, expected, repr(part), 'write "dp=2,pp=2"')
        if key not in FIELDS:
            hint = did_you_mean(key, FIELDS, "drop it")
            raise _refuse(text, f"keys out of {', '.join(FIELDS)}", repr(key), hint)
        if key in values:
            raise _refuse(text, "each key once", f"{key} twice", f"keep one {key}")
        values[key] = _value(text, FIELDS[key], word)
    return values


def write_text(plan: PlanFields) -> str:
    """Return the canonical text of ``plan``: keys in the order of `FIELDS`, without defaults."""
    return ",".join(f"{field.name}={word}" for field, word in _stated(plan)) or "dp=1"


def write_slug(plan: PlanFields) -> str:
    """Return ``plan`` in the form used in file names, such as ``dp2-pp2-1f1b-m4``."""
    parts = [f"dp{plan.dp}"]
    for field, word in _stated(plan):
        if field.name != "dp":
            parts.append(_form(field.about.slug, field.name, word))
    return "-".join(parts).replace("_", "-")


class Chip(NamedTuple):
    """One property of a plan and what it means."""

    text: str
    meaning: str


def plan_chips(text: str) -> list[Chip]:
    """Return the properties stated in a plan's text, even if `ParallelPlan.parse` refuses it."""
    chips = []
    for part in text.split(","):
        key, _, word = (piece.strip() for piece in part.partition("="))
        if field := FIELDS.get(key):
            meaning = field.about.meaning
            if not field.about.equivalent and word != field.word(field.default):
                meaning += "; computes something else than one process, so open division"
            chips.append(Chip(_form(field.about.chip, key, word), meaning))
        elif key:
            chips.append(Chip(f"{key} {word}".strip(), key))
    return chips


def complete_plan(text: str) -> list[str]:
    """Return the completions of the last key or value in ``text``, each as a complete text.

    ``dp=2,sch`` becomes ``dp=2,schedule=``, and ``schedule=g`` becomes ``schedule=gpipe``.
    """
    before, comma, last = text.rpartition(",")
    stated = {part.partition("=")[0].strip() for part in before.split(",")}
    key, equals, prefix = last.partition("=")
    if equals:
        words = FIELDS[key].words if key in FIELDS else {}
        ends = [f"{key}={word}" for word in words if word.startswith(prefix)]
    else:
        ends = [f"{name}=" for name in FIELDS if name.startswith(key) and name not in stated]
    return [f"{before}{comma}{end}" for end in ends]


def _stated(plan: PlanFields) -> Iterator[tuple[Field, str]]:
    """Yield each field that the canonical text of ``plan`` states, with its value as a word."""
    for field in FIELDS.values():
        value = getattr(plan, field.name)
        if field.name == "microbatches":
            implied = plan.schedule is None and value == field.default
        elif field.name == "stages":
            implied = plan.pipeline is None or not plan.pipeline.stages_vary
        else:
            implied = value == field.default
        if not implied:
            yield field, field.word(value)


def _form(template: str, name: str, word: str) -> str:
    """Fill in a template; a field with the value ``on`` is named by its key alone."""
    return name if word == "on" else template.format(name=name, word=word).strip()


def _value(text: str, field: Field, word: str) -> object:
    if word in field.words:
        return field.words[word]
    if field.takes_series:
        return _series(text, field, word)
    if not field.takes_numbers:
        raise _refuse(text, f"{field.name} to be one of {', '.join(field.words)}", word)
    if (number := _number(word)) is not None and field.about.least <= number:
        return number
    names = "".join(f"{name}, " for name in field.words).removesuffix(", ")
    kind = f"a whole number from {field.about.least} to {LARGEST_NUMBER}"
    expected = f"{field.name} to be {f'{names} or ' if names else ''}{kind}"
    raise _refuse(text, expected, repr(word))


def _series(text: str, field: Field, word: str) -> tuple[int, ...]:
    numbers = tuple(_number(each.strip()) for each in word.split("-"))
    if field.admits(numbers):
        return numbers  # type: ignore[return-value]  # a field admits no None
    kind = f"whole numbers from {field.about.least} to {LARGEST_NUMBER} that increase"
    expected = f"{field.name} to be {kind}, divided by '-'"
    raise _refuse(text, expected, repr(word), f'write "{field.name}=3-7-12"')


def _number(word: str) -> int | None:
    if word.isascii() and word.isdigit() and len(word) <= len(str(LARGEST_NUMBER)):
        return int(word)
    return None


def _refuse(text: str, expected: str, found: str, remedy: str = "correct it") -> UserError:
    finding = Finding("plan.text", expected, found, remedy, path=f"plan {text!r}")
    return UserError(finding, ExitCode.USAGE)
