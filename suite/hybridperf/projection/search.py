"""Search for the plans that are projected to be fastest: best first, with lower bounds.

Plans are looked at in the order of a time that their step takes at least. The search ends when
that exceeds the projected time of the last plan wanted, so that nothing it leaves out is among the
best. What does not fit into memory is left out before its time is projected.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from hybridperf.errors import UserError
from hybridperf.plan.fields import FIELDS
from hybridperf.projection.bounds import GroupBounds, plan_at_least_s
from hybridperf.projection.candidates import RECOMPUTED, Layout
from hybridperf.projection.costs import plan_costs
from hybridperf.projection.memory import memory_bytes
from hybridperf.projection.project import project
from hybridperf.projection.projected_cuts import projected_cuts
from hybridperf.projection.steps import settling_plans, simulated_steps

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hybridperf.plan import ParallelPlan
    from hybridperf.projection.candidates import Candidates, Pipeline
    from hybridperf.projection.link import Network
    from hybridperf.projection.project import Projection
    from hybridperf.projection.units import UnitTable, UnitTiming
    from hybridperf.tasks.task import Task

__all__ = ["Ranking", "Work", "cut_again", "groups", "search"]

_SAME: Final = 1e-9  #: relative difference of steps below which two plans count as one
_PARTITIONS: Final = 20  #: that are simulated to cut a pipeline again, about
_LEAST_GAIN: Final = 1e-3  #: of a step, by each compression of a plan that counts
_DEFAULTS: Final = FIELDS["gradients"].default, FIELDS["links"].default
_ACTIONS: Final = 10  #: six passes and messages of a stage, of which some are simulated again


@dataclass(frozen=True, slots=True)
class Work:
    """What is trained, and on what."""

    units: UnitTable
    timing: UnitTiming
    network: Network
    global_batch_size: int
    optimizer: str  #: as tasks name it
    clips: bool = False  #: whether gradients are clipped
    device_bytes: int | None = None  #: memory of a device; None: not limited

    @classmethod
    def of_task(
        cls,
        task: Task,
        units: UnitTable,
        timing: UnitTiming,
        network: Network,
        device_bytes: int | None = None,
    ) -> Work:
        """Return the training of ``task``, whose units are ``units``."""
        return cls(
            units=units,
            timing=timing,
            network=network,
            global_batch_size=task.training.global_batch_size,
            optimizer=task.optimizer.name,
            clips=task.optimizer.clip_norm > 0,
            device_bytes=device_bytes,
        )

    def project(
        self,
        plan: ParallelPlan,
        cuts: Sequence[int] | None = None,
        *,
        with_timeline: bool = False,
    ) -> Projection:
        """Return what ``plan`` is projected to do, with stages cut as it says or at ``cuts``."""
        return project(
            plan,
            self.units,
            self.timing,
            self.network,
            global_batch_size=self.global_batch_size,
            optimizer=self.optimizer,
            cuts=cuts,
            clips=self.clips,
            with_timeline=with_timeline,
        )

    def gains(self, projection: Projection) -> bool:
        """Return whether a step takes longer without each compression of the projected plan.

        That is so of plans without compression.
        """
        plan, cuts = projection.plan, projection.cuts
        plain = {replace(plan, gradients=_DEFAULTS[0]), replace(plan, links=_DEFAULTS[1])} - {plan}
        enough_s = projection.step_s * (1 + _LEAST_GAIN)
        return all(self.project(each, cuts).step_s > enough_s for each in plain)

    def cut(self, plan: ParallelPlan) -> ParallelPlan:
        """Return ``plan`` with the cuts with which its step is projected to be shortest.

        Raises:
            UserError: exit status 2 if no cuts that were tried fit into memory.
        """
        return projected_cuts(
            plan,
            self.units,
            self.timing,
            self.network,
            global_batch_size=self.global_batch_size,
            optimizer=self.optimizer,
            clips=self.clips,
            device_bytes=math.inf if self.device_bytes is None else self.device_bytes,
        )


@dataclass(slots=True)
class Ranking:
    """The best plans, and how they were found."""

    best: list[Projection] = field(default_factory=list)  #: the fastest first
    considered: int = 0  #: valid plans whose memory was computed
    too_large: int = 0  #: of them, those that do not fit into memory, recomputed or not
    projected: int = 0  #: of them, those whose programs were simulated
    left: int = 0  #: of them, those not simulated since the budget was spent
    left_at_least_s: float | None = None  #: what a step takes at least under any of these
    nearest: tuple[ParallelPlan, int] | None = None
    #: of those too large, the plan that needs the least memory, and the bytes of its fullest device


def groups(candidates: Candidates, bounds: GroupBounds) -> Iterator[tuple[Layout, Pipeline]]:
    """Yield all layouts and orders of passes, also with stages cut by time if that is another cut.

    A plan states the latter as ``cuts``.
    """
    for layout in candidates.layouts():
        for pipeline in candidates.pipelines(layout):
            yield layout, pipeline
            if (stages := layout.pp * pipeline.stages) > 1:
                cuts = bounds.by_time(stages, bounds.microbatch(layout, pipeline))
                if cuts != bounds.by_flops(stages):
                    yield layout, pipeline._replace(cuts=cuts)


def search(
    candidates: Candidates, work: Work, *, most: int, budget_actions: int = 600_000
) -> Ranking:
    """Return the ``most`` plans of ``candidates`` whose steps are projected to be shortest.

    Of plans that are projected alike, the one with the shortest text counts. Simulations have at
    most ``budget_actions`` actions in all; the ranking states what was left for lack of it.
    """
    return _Search(candidates, work, most, budget_actions).run()


def cut_again(ranking: Ranking, work: Work, *, budget_actions: int = 300_000) -> None:
    """Cut the stages of the best plans of ``ranking`` where their steps are projected shortest.

    Other plans could gain, too, but none was projected to be as fast before. Pipelines whose
    simulations exceed ``budget_actions`` stay as they are.
    """
    best = []
    for projection in ranking.best:
        best.append(projection)
        actions = _PARTITIONS * _actions(projection.plan)
        if projection.plan.pp == 1 or actions > budget_actions:
            continue
        budget_actions -= actions
        with contextlib.suppress(UserError):  # of those that it tries, none fits into memory
            again = work.project(work.cut(projection.plan))
            others = [each.plan for each in (*best, *ranking.best)]  # maybe another cut of the same
            if again.step_s < projection.step_s and again.plan not in others:
                best[-1] = again
    ranking.best = sorted(best, key=lambda each: each.step_s)


class _Search:
    """A heap of groups of plans, which share layout and passes, and of plans, by lower bounds."""

    def __init__(self, candidates: Candidates, work: Work, most: int, budget: int) -> None:
        self._bounds = GroupBounds(candidates, work.units, work.timing, work.network)
        self._work = replace(work, timing=self._bounds.timing)  # which asks once for each size
        self._candidates, self._most, self._budget = candidates, most, budget
        self._ranking = Ranking()
        self._heap: list[tuple[float, int, tuple[Layout, Pipeline] | ParallelPlan]] = []
        self._number = itertools.count()

    def run(self) -> Ranking:
        for layout, pipeline in groups(self._candidates, self._bounds):
            self._push(self._bounds.at_least_s(layout, pipeline), (layout, pipeline))
        while self._heap:
            at_least_s, _, found = heapq.heappop(self._heap)
            if at_least_s > self._slowest_wanted_s:
                break
            if isinstance(found, tuple):
                self._expand(*found, at_least_s)
            else:
                self._project(found, at_least_s)
        return self._ranking

    @property
    def _slowest_wanted_s(self) -> float:
        best = self._ranking.best
        return best[-1].step_s if len(best) == self._most else float("inf")

    def _push(self, at_least_s: float, found: tuple[Layout, Pipeline] | ParallelPlan) -> None:
        heapq.heappush(self._heap, (at_least_s, next(self._number), found))

    def _expand(self, layout: Layout, pipeline: Pipeline, at_least_s: float) -> None:
        """Push the plans of a group that fit into memory and may be among the best."""
        work, cuts = self._work, self._bounds.cuts(layout, pipeline)
        times = self._bounds.timing(self._bounds.microbatch(layout, pipeline))
        for plan in self._candidates.plans(layout, pipeline):
            own_s = max(at_least_s, self._bounds.at_least_s(layout, pipeline, plan))
            if own_s > self._slowest_wanted_s:
                continue
            self._ranking.considered += 1
            if (fitting := self._fitting(plan, cuts)) is None:
                self._ranking.too_large += 1
                continue
            priced = plan_costs(fitting, work.units, times, work.network, cuts, clips=work.clips)
            self._push(max(own_s, plan_at_least_s(fitting, priced.costs)), fitting)

    def _fitting(self, plan: ParallelPlan, cuts: tuple[int, ...]) -> ParallelPlan | None:
        """Return ``plan``, if need be with the least recomputation by which it fits into memory.

        Recomputation only adds work to a step, so a plan that fits is never tried with it.
        """
        if self._needed_bytes(plan, cuts) <= self._most_bytes:
            return plan
        least, *others = (
            each
            for recompute in reversed(RECOMPUTED)
            if not (each := replace(plan, recompute=recompute)).check(self._candidates.config)
        )
        if (needed := self._needed_bytes(least, cuts)) > self._most_bytes:
            if self._ranking.nearest is None or needed < self._ranking.nearest[1]:
                self._ranking.nearest = least, needed
            return None
        fits = (
            each for each in reversed(others) if self._needed_bytes(each, cuts) <= self._most_bytes
        )
        return next(fits, least)

    @property
    def _most_bytes(self) -> float:
        limit = self._work.device_bytes
        return float("inf") if limit is None else limit

    def _needed_bytes(self, plan: ParallelPlan, cuts: tuple[int, ...]) -> int:
        samples = self._work.global_batch_size // plan.dp // plan.microbatches
        ranks = memory_bytes(plan, self._work.units, cuts, samples, self._work.optimizer)
        return max(rank.total_bytes for rank in ranks)

    def _project(self, plan: ParallelPlan, at_least_s: float) -> None:
        """Simulate ``plan``, and keep it where it is among the best."""
        actions = _actions(plan) if plan.pp > 1 else 0  # few, without a pipeline
        if actions > self._budget:
            self._ranking.left += 1
            first = self._ranking.left_at_least_s
            self._ranking.left_at_least_s = at_least_s if first is None else first
            return
        self._budget -= actions
        self._ranking.projected += 1
        cuts = plan.cuts or self._bounds.by_flops(plan.pipeline_stages)
        projection = self._work.project(plan, cuts)
        if projection.step_s < self._slowest_wanted_s and self._work.gains(projection):
            self._keep(projection)

    def _keep(self, projection: Projection) -> None:
        """Add ``projection`` to the best, unless a plainer plan is projected alike."""
        best = self._ranking.best
        for place, other in enumerate(best):
            if math.isclose(other.step_s, projection.step_s, rel_tol=_SAME):
                if _plainness(projection) < _plainness(other):
                    best[place] = projection
                return
        best.append(projection)
        best.sort(key=lambda each: each.step_s)
        del best[self._most :]


def _actions(plan: ParallelPlan) -> int:
    """Return about how many actions the simulation of ``plan`` has."""
    steps, _ = simulated_steps(plan)
    microbatches = next(settling_plans(plan)).microbatches
    return _ACTIONS * len(steps) * plan.pipeline_stages * microbatches


def _plainness(projection: Projection) -> tuple[int, str]:
    text = str(projection.plan)
    return len(text), text
