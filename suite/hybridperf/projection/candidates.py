"""The plans that a search considers: which fields vary, and which values they take.

`ParallelPlan.check` decides what is valid. What is left out here is refused by it, is another
plan's equal to the projection, or is stated in docs/planning.md; each function says which.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

from hybridperf.plan import SCHEDULES, ParallelPlan
from hybridperf.plan.fields import FIELDS, AxisOrder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridperf.plan import TrainingConfig

__all__ = ["RECOMPUTED", "Candidates", "Layout", "Methods", "Pipeline", "divisors"]

#: equivalent: plans that compute what one process does; other: those that do not
Methods = Literal["equivalent", "other"]

#: values of ``recompute`` that a search tries until a plan fits into memory. Each recomputes the
#: units of those before and more of them, so none is faster than one before it.
RECOMPUTED: Final = (0, 4, 2, 1)


class Layout(NamedTuple):
    """How ranks are divided among replicas, tensor parallelism and pipelines."""

    dp: int
    tp: int
    pp: int


class Pipeline(NamedTuple):
    """The order of a pipeline's passes; without a pipeline, of gradient accumulation."""

    microbatches: int
    schedule: str | None = None
    stages: int = 1  #: on each rank
    staleness: int = 0
    flush: bool = True
    cuts: tuple[int, ...] = ()  #: empty: as ``cut=minimax`` cuts


@dataclass(frozen=True, slots=True)
class Candidates:
    """The plans of ``ranks`` ranks that are considered for ``config``."""

    config: TrainingConfig
    ranks: int
    devices_per_node: int
    methods: Methods = "equivalent"
    precision: str = "fp32"

    @property
    def links(self) -> tuple[str, ...]:
        """Return the compressions of messages that are considered."""
        return tuple(FIELDS["links"].words) if self.methods == "other" else ("none",)

    @property
    def gradients(self) -> tuple[str, ...]:
        """Return the forms of averaged gradients that are considered."""
        return tuple(FIELDS["gradients"].words) if self.methods == "other" else ("fp32",)

    def near_replicas(self, layout: Layout) -> int | None:
        """Return the replicas of a node, if these are some of several, which may share a copy."""
        fit = [n for n in divisors(layout.dp) if n * layout.tp <= self.devices_per_node]
        near = max(fit, default=1)
        return near if 1 < near < layout.dp else None

    def layouts(self) -> Iterator[Layout]:
        """Yield every division of the ranks that `ParallelPlan.check` may accept.

        All ranks are used. ``tp`` divides what the model splits, ``pp`` is at most the number of
        units, and 1 where units share a parameter, and ``dp`` divides the batch: the constraints
        ``tp``, ``units``, ``tied`` and ``divides`` refuse all others.
        """
        config = self.config
        for tp in divisors(self.ranks):
            if tp > 1 and (not config.tensor_sizes or any(n % tp for n in config.tensor_sizes)):
                continue
            for pp in divisors(self.ranks // tp):
                dp = self.ranks // tp // pp
                fits = pp <= (1 if config.tied else config.units)
                if fits and config.global_batch_size % dp == 0:
                    yield Layout(dp, tp, pp)

    def pipelines(self, layout: Layout) -> Iterator[Pipeline]:
        """Yield every order of passes that `ParallelPlan.check` may accept under ``layout``.

        Numbers of micro-batches divide a replica's share of the batch, and those that a schedule
        cannot run are left out: the constraints ``divides`` and ``microbatches``. Updates are
        delayed by one step at most: more steps are no faster, since one step hides all that later
        ones could.
        """
        for microbatches in divisors(self.config.global_batch_size // layout.dp):
            if self.methods == "other" and layout.tp == 1:  # constraint ``program``
                yield from self._delayed(layout.pp, microbatches)
            if layout.pp == 1:
                yield Pipeline(microbatches)
                continue
            for schedule in SCHEDULES.values():
                runs = schedule.next_microbatches(layout.pp, microbatches) == microbatches
                if runs or self.methods == "other":  # compressed links: any number
                    most = self.config.units // layout.pp  # constraint ``units``
                    counts = range(2, most + 1) if schedule.stages_vary else (schedule.stages,)
                    for stages in (each for each in counts if each <= most):
                        yield Pipeline(microbatches, schedule.name, stages)

    def plans(self, layout: Layout, pipeline: Pipeline) -> Iterator[ParallelPlan]:
        """Yield the valid plans of ``layout`` and ``pipeline``, without recomputation."""
        fields: dict[str, Any] = {**layout._asdict(), **pipeline._asdict()}
        fields["precision"] = self.precision
        for replicas in self._replicas(layout, pipeline):
            for links in self.links if layout.pp > 1 else ("none",):
                for sp in (False, True) if layout.tp > 1 and self.config.tokens else (False,):
                    for order in self.orders(layout):
                        plan = ParallelPlan(**fields, **replicas, links=links, sp=sp, order=order)
                        wanted = plan.equivalent == (self.methods == "equivalent")
                        if wanted and not plan.check(self.config):
                            yield plan

    def _delayed(self, pp: int, microbatches: int) -> Iterator[Pipeline]:
        if pp == 1:
            yield Pipeline(microbatches, staleness=1)
            return
        for schedule in SCHEDULES.values():
            if schedule.stages == 1:  # constraint ``program``
                yield Pipeline(microbatches, schedule.name, staleness=1)
        yield Pipeline(microbatches, next(iter(SCHEDULES)), staleness=1, flush=False)

    def _replicas(self, layout: Layout, pipeline: Pipeline) -> Iterator[dict[str, Any]]:
        """Yield how replicas average gradients and what they shard.

        Where replicas are on several nodes, those of one node may share a copy, since its links are
        faster; other sizes of groups are between that and all replicas.
        """
        if layout.dp == 1:
            yield {}
            return
        ways: list[dict[str, Any]] = [{}]
        if not pipeline.staleness:  # constraint ``program``
            near = self.near_replicas(layout)
            shards = (None,) if near is None else (None, near)
            ways += [{"sync": "blocking"}]
            ways += [{"zero": zero, "shard": shard} for zero in (1, 2, 3) for shard in shards]
        for gradients in self.gradients:
            yield from ({**way, "gradients": gradients} for way in ways)

    def orders(self, layout: Layout) -> tuple[str, ...]:
        """Return the orders of axes to consider: on one node all links are alike."""
        default: str = FIELDS["order"].default
        axes = [size for size in layout if size > 1]
        if self.ranks <= self.devices_per_node or len(axes) < 2:
            return (default,)
        return get_args(AxisOrder)


@functools.cache
def divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of ``number`` in ascending order."""
    low = [each for each in range(1, int(number**0.5) + 1) if number % each == 0]
    return tuple(sorted({*low, *(number // each for each in low)}))
