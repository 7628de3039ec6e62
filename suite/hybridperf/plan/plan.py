"""The parallel plan, its validation, its text forms, and presets of published systems."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding
from hybridperf.plan.constraints import CONSTRAINTS
from hybridperf.plan.fields import FIELDS, LARGEST_NUMBER, Field, PlanFields
from hybridperf.plan.schedules import SCHEDULES
from hybridperf.spelling import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridperf.plan.constraints import TrainingConfig

__all__ = [
    "PRESETS",
    "Chip",
    "ParallelPlan",
    "Preset",
    "complete_plan",
    "deviations_of",
    "plan_chips",
]


@dataclass(frozen=True, slots=True)
class ParallelPlan(PlanFields):
    """A parallel plan: its fields, its text form and its validation.

    ``str(plan)`` is the canonical text: keys in the order of `FIELDS`, without defaults. `parse` is
    its inverse.
    """

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a plan such as ``"dp=2,pp=2,schedule=1f1b,microbatches=4"``; keys in any order.

        If ``pp`` > 1, the schedule defaults to ``1f1b`` and the number of micro-batches to ``pp``.

        Raises:
            UserError: exit status 2, naming the key and its possible values.
        """
        values = _read_fields(text)
        pp = values.get("pp", 1)
        if pp > 1:
            values.setdefault("schedule", next(iter(SCHEDULES)))
            values.setdefault("microbatches", pp)
        if "schedule" in values:
            values.setdefault("stages", SCHEDULES[values["schedule"]].stages)
        if values.get("zero") and values.get("shard") == values.get("dp", 1):
            del values["shard"]
        plan, path = cls(**values), f"plan {text!r}"
        if "cut" in values and plan.cuts:  # also where it states the default
            raise UserError(_cut_twice(plan, path), ExitCode.USAGE)
        for finding in plan._inconsistencies(path):
            raise UserError(finding, ExitCode.USAGE)
        return plan

    def __str__(self) -> str:
        return ",".join(f"{field.name}={word}" for field, word in _stated(self)) or "dp=1"

    @property
    def slug(self) -> str:
        """Return the text form for file names: ``dp2-pp2-1f1b-m4``."""
        parts = [f"dp{self.dp}"]
        for field, word in _stated(self):
            if field.name != "dp":
                parts.append(_form(field.metadata.slug, field.name, word))
        return re.sub(r"[_.]", "-", "-".join(parts))

    def batch_norm_span(self, global_batch_size: int) -> int:
        """Return the number of samples in the statistics of a BatchNorm layer."""
        replicas = 1 if self.bn == "sync" else self.dp
        return global_batch_size // (replicas * self.microbatches)

    def difference_from(self, other: Self, *, batch_norm: bool) -> str:
        """Return what the plan computes otherwise than ``other``, up to the order of sums.

        It is empty if every step of a run may be trained under either plan. ``batch_norm``: the
        model has BatchNorm layers.
        """
        for plan in (self, other):
            if plan.deviations:
                return ",".join(plan.deviations)
        if self.precision != other.precision:
            return f"precision={self.precision}"
        if not batch_norm:
            return ""
        over_all = [p.bn == "sync" or (p.bn == "micro" and p.dp == 1) for p in (self, other)]
        if not (all(over_all) or (self.bn, self.dp) == (other.bn, other.dp)):
            return f"BatchNorm over each of {self.dp} replicas, not {other.dp}"
        same = self.microbatches == other.microbatches
        return "" if same else f"BatchNorm over microbatches={self.microbatches}"

    def check(self, config: TrainingConfig) -> list[Finding]:
        """Return a finding for each constraint that the plan violates for ``config``."""
        path = f"plan {str(self)!r}"
        return list(self._inconsistencies(path)) or [
            Finding(f"plan.{each.rule}", *reason, path=path)
            for each in CONSTRAINTS
            for reason in each.reasons(self, config)
        ]

    def _inconsistencies(self, path: str) -> Iterator[Finding]:
        """Yield a finding for each inconsistency of the fields, independent of the model."""

        def finding(expected: str, found: str, remedy: str = "correct it") -> Finding:
            return Finding("plan.text", expected, found, remedy, path=path)

        wrong = [each for each in FIELDS.values() if not each.admits(getattr(self, each.name))]
        for field in wrong:
            expected = f"{field.name} to be one of {', '.join(field.values)}"
            yield finding(expected, repr(getattr(self, field.name)))
        if wrong:
            return
        if self.pp == 1 and self.schedule is not None:
            found = f"schedule={self.schedule}"
            yield finding("no schedule where pp=1", found, "add pp=2 or drop schedule")
        elif self.pp > 1 and self.schedule is None:
            yield finding("a schedule where pp > 1", "none", "add schedule=1f1b")
        if self.zero and self.shard == self.dp:
            yield finding(
                "no shard where all replicas are one sharding group",
                f"shard={self.shard}",
                "drop it",
            )
        where = "without a pipeline" if self.pipeline is None else f"under schedule={self.schedule}"
        default = 1 if self.pipeline is None else self.pipeline.stages
        if self.pipeline is not None and self.pipeline.stages_vary:
            if self.stages < 2:
                expected = f"at least 2 stages on a rank {where}"
                yield finding(expected, f"stages={self.stages}", "drop stages, or use 1f1b")
        elif self.stages != default:
            expected = f"{default} {'stage' if default == 1 else 'stages'} on a rank {where}"
            yield finding(expected, f"stages={self.stages}", "drop stages")
        if self.cuts and self.cut != FIELDS["cut"].default:
            yield _cut_twice(self, path)


def _cut_twice(plan: PlanFields, path: str) -> Finding:
    found = f"cut={plan.cut} and cuts={FIELDS['cuts'].word(plan.cuts)}"
    return Finding("plan.text", "either cut or cuts", found, "drop one of them", path=path)


def deviations_of(text: object) -> tuple[str, ...] | None:
    """Return the `ParallelPlan.deviations` of a plan's ``text``; None if it cannot be parsed."""
    try:
        return ParallelPlan.parse(text).deviations if isinstance(text, str) else None
    except UserError:
        return None


def _read_fields(text: str) -> dict[str, Any]:
    """Parse the fields in ``text``, such as ``dp=2,pp=2``, with keys in any order.

    Presets are expanded first.

    Raises:
        UserError: exit status 2, naming the key and its possible values.
    """
    values: dict[str, Any] = {}
    for part in _expand_presets(text).split(","):
        key, equals, word = (piece.strip() for piece in part.partition("="))
        if not equals:
            expected = "key=value pairs separated by commas"
            raise _refuse(text, expected, repr(part), 'write "dp=2,pp=2"')
        if key not in FIELDS:
            hint = did_you_mean(key, FIELDS, "drop it")
            raise _refuse(text, f"one of the keys {', '.join(FIELDS)}", repr(key), hint)
        if key in values:
            raise _refuse(text, "each key once", f"{key} twice", f"keep one {key}")
        values[key] = _value(text, FIELDS[key], word)
    return values


class Chip(NamedTuple):
    """One property of a plan and its meaning."""

    text: str
    meaning: str


def plan_chips(text: str) -> list[Chip]:
    """Return the properties in a plan's text, even if `ParallelPlan.parse` refuses the text."""
    chips = []
    for part in text.split(","):
        key, _, word = (piece.strip() for piece in part.partition("="))
        if field := FIELDS.get(key):
            meaning = field.metadata.meaning
            if not field.metadata.equivalent and word != field.word(field.default):
                meaning += "; not equivalent to single-process training, so open division only"
            chips.append(Chip(_form(field.metadata.chip, key, word), meaning))
        elif key:
            chips.append(Chip(f"{key} {word}".strip(), key))
    return chips


def complete_plan(text: str) -> list[str]:
    """Return the completions of the last key or value in ``text``, each as a complete text.

    ``dp=2,sch`` becomes ``dp=2,schedule=``, and ``schedule=g`` becomes ``schedule=gpipe``.
    """
    before, comma, last = text.rpartition(",")
    keys = {part.partition("=")[0].strip() for part in before.split(",")}
    key, equals, prefix = last.partition("=")
    if equals:
        words = FIELDS[key].words if key in FIELDS else {}
        ends = [f"{key}={word}" for word in words if word.startswith(prefix)]
    else:
        ends = [f"{name}=" for name in FIELDS if name.startswith(key) and name not in keys]
    return [f"{before}{comma}{end}" for end in ends]


def _stated(plan: PlanFields) -> Iterator[tuple[Field, str]]:
    """Yield the fields of ``plan``'s canonical text, each with its value as a word."""
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
    """Fill in a template; the value ``on`` leaves the field's name alone."""
    return name if word == "on" else template.format(name=name, word=word).strip()


def _value(text: str, field: Field, word: str) -> object:
    if word in field.words:
        return field.words[word]
    if field.takes_series:
        return _series(text, field, word)
    if not field.takes_numbers:
        raise _refuse(text, f"{field.name} to be one of {', '.join(field.words)}", word)
    if (number := _number(word)) is not None and field.metadata.minimum <= number:
        return number
    names = "".join(f"{name}, " for name in field.words).removesuffix(", ")
    kind = f"a whole number from {field.metadata.minimum} to {LARGEST_NUMBER}"
    expected = f"{field.name} to be {f'{names} or ' if names else ''}{kind}"
    raise _refuse(text, expected, repr(word))


def _series(text: str, field: Field, word: str) -> tuple[int, ...]:
    numbers = tuple(_number(each.strip()) for each in word.split("-"))
    if field.admits(numbers):
        return numbers  # type: ignore[return-value]  # a field admits no None
    kind = f"increasing whole numbers from {field.metadata.minimum} to {LARGEST_NUMBER}"
    expected = f"{field.name} to be {kind}, separated by '-'"
    raise _refuse(text, expected, repr(word), f'write "{field.name}=3-7-12"')


def _number(word: str) -> int | None:
    if word.isascii() and word.isdigit() and len(word) <= len(str(LARGEST_NUMBER)):
        return int(word)
    return None


def _refuse(text: str, expected: str, found: str, remedy: str = "correct it") -> UserError:
    return UserError.of("plan.text", expected, found, remedy, path=f"plan {text!r}")


@dataclass(frozen=True, slots=True)
class Preset:
    """A plan with parameters, written ``name(parameter=value,...)``."""

    name: str
    text: str  #: plan with each parameter in braces
    meaning: str
    source: str

    @property
    def parameters(self) -> tuple[str, ...]:
        """Return the names of the parameters, in the order of the plan's text."""
        return tuple(re.findall(r"\{(\w+)\}", self.text))


#: presets by name; where a paper's text is not public, the definition is ours
PRESETS: Final = {
    preset.name: preset
    for preset in (
        Preset(
            name="baidu",
            text="zero=1,shard={node}",
            meaning="gradients reduced in each node of so many ranks, then between nodes, and an "
            "optimizer sharded in the node",
            source="our definition, after Baidu's BERT in MLPerf Training v2.1 (distributed LAMB)",
        ),
        Preset(
            name="gropipe",
            text="dp={groups},pp={stages},staleness=1",
            meaning="replicas that are pipelines, and updates delayed by a step",
            source="our definition, after the abstract of GroPipe (Liu et al. 2025)",
        ),
        Preset(
            name="pipedream_2bw",
            text="pp={stages},staleness=1,flush=off",
            meaning="a pipeline without a flush, with two versions of the weights",
            source="PipeDream-2BW (Narayanan et al. 2021)",
        ),
    )
}

_CALL: Final = re.compile(r"\s*(\w+)\s*\(([^()]*)\)\s*")


def _expand_presets(text: str) -> str:
    """Replace each preset in ``text``, such as ``gropipe(groups=2,stages=2)``, by its fields.

    Raises:
        UserError: exit status 2, naming the unknown preset or the preset's parameters.
    """
    return _CALL.sub(lambda call: _expanded(text, call[1], call[2]), text)


def _expanded(text: str, name: str, arguments: str) -> str:
    if (preset := PRESETS.get(name)) is None:
        hint = did_you_mean(name, PRESETS, "write fields")
        raise _refuse(text, f"one of the presets {', '.join(PRESETS)}", repr(name), hint)
    pairs = [part.partition("=") for part in arguments.split(",")]
    values = {key.strip(): value.strip() for key, _, value in pairs}
    if len(pairs) != len(values) or values.keys() != {*preset.parameters}:
        example = ",".join(f"{parameter}=2" for parameter in preset.parameters)
        raise _refuse(
            text,
            f"{name} with {' and '.join(preset.parameters)}",
            repr(arguments),
            f'write "{name}({example})"',
        )
    return preset.text.format_map(values)
