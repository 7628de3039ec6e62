"""The parallel plan: how training is distributed over devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding
from hybridperf.plan import constraints, program_constraints  # noqa: F401 - they register
from hybridperf.plan.constraint import CONSTRAINTS
from hybridperf.plan.fields import FIELDS, PlanFields
from hybridperf.plan.schedules import SCHEDULES
from hybridperf.plan.text import read_fields, write_slug, write_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridperf.plan.constraint import TrainingConfig

__all__ = ["ParallelPlan", "deviations_of"]


@dataclass(frozen=True, slots=True)
class ParallelPlan(PlanFields):
    """A parallel plan: its fields, its text form and its validation.

    ``str(plan)`` is the canonical text, which omits defaults; `parse` is its inverse.
    """

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a plan such as ``"dp=2,pp=2,schedule=1f1b,microbatches=4"``; keys in any order.

        If ``pp`` > 1, the schedule defaults to ``1f1b`` and the number of micro-batches to ``pp``.

        Raises:
            UserError: exit status 2, naming the key and its possible values.
        """
        values = read_fields(text)
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
        return write_text(self)

    @property
    def slug(self) -> str:
        """Return the text form for file names: ``dp2-pp2-1f1b-m4``."""
        return write_slug(self)

    def batch_norm_span(self, global_batch_size: int) -> int:
        """Return the number of samples over which a BatchNorm layer takes its statistics."""
        replicas = 1 if self.bn == "sync" else self.dp
        return global_batch_size // (replicas * self.microbatches)

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
                "no shard where all replicas share one copy", f"shard={self.shard}", "drop it"
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
    found = f"cut={plan.cut} beside cuts={FIELDS['cuts'].word(plan.cuts)}"
    return Finding("plan.text", "either cut or cuts", found, "drop one of them", path=path)


def deviations_of(text: object) -> tuple[str, ...] | None:
    """Return the `ParallelPlan.deviations` of a plan's ``text``; None if it cannot be parsed."""
    try:
        return ParallelPlan.parse(text).deviations if isinstance(text, str) else None
    except UserError:
        return None
