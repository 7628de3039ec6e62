"""The parallel plan: how training is spread over devices, and its one text form."""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self, get_args

from suite.findings import Finding
from suite.refusal import ExitCode, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ChainFacts", "ParallelPlan", "Schedule"]

Schedule = Literal["gpipe", "1f1b"]


@dataclass(frozen=True, slots=True)
class ChainFacts:
    """What a plan must fit: the model's units, the batch and the devices."""

    units: int
    global_batch_size: int
    devices: int  #: accelerators, or processor cores where there are none
    ranks_per_device: int  #: 1 on accelerators; cores may be shared, which is then declared


@dataclass(frozen=True, slots=True)
class ParallelPlan:
    """How training is spread: ``dp`` replicas, each a pipeline of ``pp`` stages.

    A replica's share of the global batch is cut into ``microbatches``. ``str(plan)`` is the
    canonical text, ``ParallelPlan.parse`` its inverse.
    """

    dp: int = 1
    pp: int = 1
    schedule: Schedule | None = None  #: None exactly where there is no pipeline
    microbatches: int = 1

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``"dp=2,pp=2,schedule=1f1b,microbatches=4"``; keys may stand in any order.

        A pipeline's schedule defaults to ``1f1b`` and its micro-batches to ``pp``.

        Raises:
            Refusal: exit status 2, naming the key and what may stand there.
        """
        values = dict(_pairs(text))
        sizes = {key: _positive(text, key, values.pop(key)) for key in _SIZES if key in values}
        pp = sizes.get("pp", 1)
        schedule = values.pop("schedule", "1f1b" if pp > 1 else None)
        if schedule is not None and schedule not in get_args(Schedule):
            raise _refuse(text, f"schedule to be one of {_either(get_args(Schedule))}", schedule)
        if schedule is not None and pp == 1:
            raise _refuse(
                text, "no schedule where pp=1", f"schedule={schedule}", "add pp=2 or drop schedule"
            )
        sizes.setdefault("microbatches", pp)
        return cls(schedule=schedule, **sizes)  # type: ignore[arg-type]  # checked two lines up

    def __str__(self) -> str:
        parts = [f"{key}={getattr(self, key)}" for key in ("dp", "pp") if getattr(self, key) > 1]
        if self.schedule is not None:
            parts += [f"schedule={self.schedule}"]
        if self.schedule is not None or self.microbatches > 1:
            parts += [f"microbatches={self.microbatches}"]
        return ",".join(parts) or "dp=1"

    @property
    def slug(self) -> str:
        """Return the text form for file names: ``dp2-pp2-1f1b-m4``."""
        parts = [f"dp{self.dp}"]
        if self.pp > 1:
            parts += [f"pp{self.pp}", str(self.schedule)]
        if self.pp > 1 or self.microbatches > 1:
            parts += [f"m{self.microbatches}"]
        return "-".join(parts)

    @property
    def ranks(self) -> int:
        """Return the number of processes the plan needs."""
        return self.dp * self.pp

    def check(self, facts: ChainFacts) -> list[Finding]:
        """Return what keeps this plan from running on ``facts``; empty where nothing does."""
        return list(self._misfits(facts))

    def _misfits(self, facts: ChainFacts) -> Iterator[Finding]:
        if self.ranks > (most := facts.devices * facts.ranks_per_device):
            yield self._misfit(
                "ranks",
                f"at most {most} ranks ({facts.devices} devices, {facts.ranks_per_device} on each)",
                f"dp x pp = {self.ranks} ranks",
                "lower dp or pp, or run on more devices",
            )
        if self.pp > facts.units:
            yield self._misfit(
                "units",
                f"at most {facts.units} stages, one for each unit of the model",
                f"pp={self.pp}",
                f"lower pp to {facts.units} or less",
            )
        if facts.global_batch_size % (parts := self.dp * self.microbatches):
            yield self._misfit(
                "divides",
                f"dp x microbatches to divide the batch of {facts.global_batch_size} samples",
                f"{self.dp} x {self.microbatches} = {parts}",
                "choose dp and microbatches from its divisors",
            )
        if self.schedule == "1f1b" and self.microbatches < self.pp:
            yield self._misfit(
                "microbatches",
                f"at least pp={self.pp} micro-batches under schedule=1f1b",
                f"microbatches={self.microbatches}",
                f"set microbatches={self.pp} or more, or schedule=gpipe",
            )

    def _misfit(self, name: str, expected: str, found: str, remedy: str) -> Finding:
        return Finding(f"plan.{name}", expected, found, remedy, path=f"plan {str(self)!r}")


_SIZES = ("dp", "pp", "microbatches")
_KEYS = tuple(field.name for field in dataclasses.fields(ParallelPlan))


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise _refuse(
                text, "key=value pairs divided by commas", repr(part), 'write "dp=2,pp=2"'
            )
        if key not in _KEYS:
            near = difflib.get_close_matches(key, _KEYS)
            like = max(near, key=key.startswith, default="")
            hint = f"did you mean {like}?" if near else "drop it"
            raise _refuse(text, f"keys out of {_either(_KEYS)}", repr(key), hint)
        if key in seen:
            raise _refuse(text, "each key once", f"{key} twice", f"keep one {key}")
        seen.add(key)
        yield key, value


def _positive(text: str, key: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and 0 < len(value) < 7 and int(value) > 0):
        raise _refuse(text, f"{key} to be a whole number from 1 to 999999", repr(value))
    return int(value)


def _either(names: tuple[str, ...]) -> str:
    return ", ".join(names)


def _refuse(text: str, expected: str, found: str, remedy: str = "correct it") -> Refusal:
    finding = Finding("plan.text", expected, found, remedy, path=f"plan {text!r}")
    return Refusal(finding, ExitCode.USAGE)
