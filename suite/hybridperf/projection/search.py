"""Search for the plans that are projected to be fastest: best first, with lower bounds.

`Candidates` yields the plans that are considered: `ParallelPlan.check` decides which are valid; a
plan is left out if it is refused there, has the same projection as another plan, or is listed in
docs/planning.md. Groups of plans, then plans, are opened in the order of a lower bound on their
step time. The search ends when that bound exceeds the projected step of the last plan wanted, so
that no plan left out is among the best. Plans that do not fit into memory are left out before their
step is projected. `tests/projection/test_search.py` compares each bound with the projection of
every valid plan of small cases and random networks.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import itertools
import math
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate, pairwise, product
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, get_args

from hybridperf.errors import UserError
from hybridperf.plan import SCHEDULES, ParallelPlan
from hybridperf.plan.fields import FIELDS, AxisOrder
from hybridperf.projection.costs import exchange_s, plan_at_least_s, plan_costs, work_share
from hybridperf.projection.memory import memory_bytes
from hybridperf.projection.partition import partition, stage_cuts
from hybridperf.projection.project import project, projected_cuts
from hybridperf.projection.simulate import settling_plans, simulated_steps
from hybridperf.projection.traffic import Stages, axis_stride, replica_node_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hybridperf.plan import TrainingConfig
    from hybridperf.projection.costs import ExchangeSeconds
    from hybridperf.projection.network import Network
    from hybridperf.projection.partition import Cuts
    from hybridperf.projection.project import Projection
    from hybridperf.projection.units import UnitCounts, UnitTable, UnitTiming
    from hybridperf.tasks.task import Task

__all__ = [
    "RECOMPUTED",
    "Candidates",
    "GroupBounds",
    "Layout",
    "Methods",
    "PassOrder",
    "Ranking",
    "Work",
    "cut_again",
    "divisors",
    "groups",
    "search",
]

#: equivalent: plans that are equivalent to single-process training; other: all other plans
Methods = Literal["equivalent", "other"]

#: values of ``recompute`` that a search tries until a plan fits into memory. Each recomputes the
#: units of those before and more of them, so none is faster than one before it.
RECOMPUTED: Final = (0, 4, 2, 1)


class Layout(NamedTuple):
    """How ranks are divided among replicas, tensor and context parallelism, and pipelines."""

    dp: int
    tp: int
    pp: int
    cp: int = 1
    tensor: str = "1d"

    @property
    def inner(self) -> InnerLayout:
        """Return how the ranks of a stage of one replica are divided."""
        return self.tp, self.cp, self.tensor


InnerLayout: TypeAlias = "tuple[int, int, str]"  #: ``tp``, ``cp`` and ``tensor``


class PassOrder(NamedTuple):
    """Order of the passes of a pipeline or, without one, of gradient accumulation."""

    microbatches: int
    schedule: str | None = None
    stages: int = 1  #: stages of each rank
    staleness: int = 0
    flush: bool = True
    cuts: tuple[int, ...] = ()  #: first units of stages; empty: as ``cut=minimax`` partitions


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
        inside = self.devices_per_node // (layout.tp * layout.cp)
        fit = [n for n in divisors(layout.dp) if n <= inside]
        near = max(fit, default=1)
        return near if 1 < near < layout.dp else None

    def layouts(self) -> Iterator[Layout]:
        """Yield every division of the ranks that `ParallelPlan.check` may accept.

        All ranks are used. One replica of one stage passes the check, ``pp`` is at most the number
        of units, and ``dp`` divides the batch: the constraints ``units`` and ``divides`` refuse all
        others.
        """
        config = self.config
        for tp, cp, tensor in self._inner_layouts():
            for pp in divisors(self.ranks // tp // cp):
                dp = self.ranks // tp // cp // pp
                if pp <= config.units and config.global_batch_size % dp == 0:
                    yield Layout(dp, tp, pp, cp, tensor)

    def _inner_layouts(self) -> Iterator[InnerLayout]:
        """Yield every division of the ranks of a stage of one replica that is valid by itself."""
        for tp in divisors(self.ranks) if self.config.tensor_sizes else (1,):
            for tensor in FIELDS["tensor"].words if tp > 1 else ("1d",):
                for cp in divisors(self.ranks // tp) if self.config.tokens else (1,):
                    if not _plan(tp=tp, cp=cp, tensor=tensor).check(self.config):
                        yield tp, cp, tensor

    def pipelines(self, layout: Layout) -> Iterator[PassOrder]:
        """Yield every order of passes that `ParallelPlan.check` may accept under ``layout``.

        Numbers of micro-batches divide a replica's share of the batch, and those that a schedule
        cannot run are left out, as are micro-batches that ``tensor`` cannot split: the constraints
        ``divides``, ``microbatches`` and ``tensor``. So are
        micro-batches of samples that more replicas could take in place of ``cp``, which would send
        no keys and values. Updates are delayed by one step at most: more steps are no faster, since
        one step hides all that later ones could.
        """
        share = self.config.global_batch_size // layout.dp
        parts = _plan(tp=layout.tp, tensor=layout.tensor).batch_parts
        for microbatches in divisors(share):
            samples = share // microbatches
            if samples % parts or math.gcd(samples, layout.cp) > 1:
                continue
            if self.methods == "other" and layout.tp * layout.cp == 1:  # constraint ``program``
                yield from self._delayed(layout.pp, microbatches)
            if layout.pp == 1:
                yield PassOrder(microbatches)
                continue
            for schedule in SCHEDULES.values():
                runs = schedule.next_microbatches(layout.pp, microbatches) == microbatches
                if runs or self.methods == "other":  # compressed links: any number
                    most = self.config.units // layout.pp  # constraint ``units``
                    counts = range(2, most + 1) if schedule.stages_vary else (schedule.stages,)
                    for stages in (each for each in counts if each <= most):
                        yield PassOrder(microbatches, schedule.name, stages)

    def plans(self, layout: Layout, pipeline: PassOrder) -> Iterator[ParallelPlan]:
        """Yield the valid plans of ``layout`` and ``pipeline``, without recomputation."""
        fields: dict[str, Any] = {**layout._asdict(), **pipeline._asdict()}
        fields["precision"] = self.precision
        for replicas in self._replicas(layout, pipeline):
            for links in self.links if layout.pp > 1 else ("none",):
                for sp in self.sequence_parallel(layout):
                    for order in self.orders(layout):
                        own: dict[str, Any] = {"links": links, "sp": sp, "order": order}
                        plan = ParallelPlan(**fields, **replicas, **own)
                        wanted = plan.equivalent == (self.methods == "equivalent")
                        if wanted and not plan.check(self.config):
                            yield plan

    def _delayed(self, pp: int, microbatches: int) -> Iterator[PassOrder]:
        if pp == 1:
            yield PassOrder(microbatches, staleness=1)
            return
        for schedule in SCHEDULES.values():
            if schedule.stages == 1:  # constraint ``program``
                yield PassOrder(microbatches, schedule.name, staleness=1)
        yield PassOrder(microbatches, next(iter(SCHEDULES)), staleness=1, flush=False)

    def _replicas(self, layout: Layout, pipeline: PassOrder) -> Iterator[dict[str, Any]]:
        """Yield how replicas average gradients and what they shard.

        If replicas are on several nodes, the replicas of a node may shard one copy over its faster
        links; groups of other sizes perform between that and sharding over all replicas.
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

    def sequence_parallel(self, layout: Layout) -> tuple[bool, ...]:
        """Return the values of ``sp`` to consider."""
        splits = layout.tp > 1 and layout.tensor == "1d" and layout.cp == 1
        return (False, True) if splits and self.config.tokens else (False,)

    def orders(self, layout: Layout) -> tuple[str, ...]:
        """Return the orders of axes to consider: on one node all links are alike."""
        default: str = FIELDS["order"].default
        axes = [size for size in (layout.dp, layout.tp * layout.cp, layout.pp) if size > 1]
        if self.ranks <= self.devices_per_node or len(axes) < 2:
            return (default,)
        return get_args(AxisOrder)


@functools.cache
def divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of ``number`` in ascending order."""
    low = [each for each in range(1, int(number**0.5) + 1) if number % each == 0]
    return tuple(sorted({*low, *(number // each for each in low)}))


Ways: TypeAlias = "tuple[tuple[int, bool], ...]"  #: stride of tp ranks, and whether there is sp
_ALONE: Final[Ways] = ((1, False),)  #: the ways of one rank
_UNDIVIDED: Final[InnerLayout] = (1, 1, "1d")


def _plan(**fields: Any) -> ParallelPlan:
    """Return a plan of which only ``fields`` count."""
    return ParallelPlan(**fields)


class GroupBounds:
    """Lower bounds on the steps of plans that share a layout and an order of passes.

    Few numbers of stages and sizes of micro-batches make very many plans, so what is found for one
    of them is kept.
    """

    def __init__(
        self, candidates: Candidates, units: UnitTable, timing: UnitTiming, network: Network
    ) -> None:
        self._candidates, self._units, self._network = candidates, units.units, network
        self.timing = cache(timing)
        self.by_flops, self.by_time = cache(self._by_flops), cache(self._by_time)
        self._sums, self._ways = cache(self._running_sums), cache(self._all_ways)
        self._alike = _first_alike(self._units)

    def microbatch(self, layout: Layout, pipeline: PassOrder) -> int:
        """Return the samples of a micro-batch."""
        batch = self._candidates.config.global_batch_size
        return batch // layout.dp // pipeline.microbatches

    def at_least_s(
        self, layout: Layout, pipeline: PassOrder, plan: ParallelPlan | None = None
    ) -> float:
        """Return a lower bound on the step time, in seconds, by the passes of the busiest rank.

        That is under ``plan`` or, if None, under all plans of the group. A rank computes the passes
        of all its stages for all micro-batches. Of what tensor parallelism splits it computes its
        part, and exchanges what its group needs. With a flush, rank r also waits: its first
        pass needs the passes of earlier stages, which are on other ranks, and these ranks
        compute their backward passes after its last one, before the next step begins. Where
        backward passes are split, others wait for the halves that compute gradients of inputs only.
        Recomputation, updates and all other communication come on top: bounding averages and
        messages saved no search any time.
        """
        ways: Ways = _ALONE
        if layout.tp * layout.cp > 1:
            ways = ((axis_stride(plan, "tp"), plan.sp),) if plan else self._ways(layout)
        forward, both = self._sums(self.microbatch(layout, pipeline), layout.inner, ways)
        edges = (0, *self.cuts(layout, pipeline), len(self._units))
        schedule = SCHEDULES.get(pipeline.schedule or "")
        splits = schedule is not None and schedule.split_backward
        number, most = pipeline.microbatches, 0.0
        for rank, own in enumerate(self._placed(layout, pipeline)):
            passes_s = sum(both[edges[stage + 1]] - both[edges[stage]] for stage in own)
            most, first = max(most, number * passes_s), edges[min(own)]
            if pipeline.flush and not splits:
                most = max(most, both[first] + number * passes_s)
            elif pipeline.flush and rank:  # the halves that compute gradients of inputs count
                forward_s = sum(forward[edges[stage + 1]] - forward[edges[stage]] for stage in own)
                back_s = both[first] - both[edges[1]] - (forward[first] - forward[edges[1]])
                own_s = number * (forward_s + passes_s) / 2
                most = max(most, forward[first] + own_s + back_s / 2)
        return most

    def _all_ways(self, layout: Layout) -> Ways:
        """Return the ways of all plans of ``layout``: every order of axes, with and without sp."""
        orders = (_plan(**layout._asdict(), order=each) for each in self._candidates.orders(layout))
        strides = {axis_stride(each, "tp") for each in orders}
        return tuple(product(strides, self._candidates.sequence_parallel(layout)))

    def cuts(self, layout: Layout, pipeline: PassOrder) -> Cuts:
        """Return the first units of each stage but the first."""
        return pipeline.cuts or self.by_flops(layout.pp * pipeline.stages)

    def _by_flops(self, stages: int) -> Cuts:
        """Return the first units of all ``stages`` but the first, as ``cut=minimax`` has them."""
        return stage_cuts(_plan(pp=stages), self._units)

    def _by_time(self, stages: int, samples: int) -> Cuts:
        """Return those where the passes of the slowest stage take the least time."""
        both = [high - low for low, high in pairwise(self._sums(samples, _UNDIVIDED, _ALONE)[1])]
        allowed = [unit.begins_stage for unit in self._units]
        return partition("minimax", both, stages, allowed)

    @staticmethod
    def _placed(layout: Layout, pipeline: PassOrder) -> list[tuple[int, ...]]:
        """Return the stages of each rank."""
        if pipeline.schedule is None:
            return [(0,)]
        placement = SCHEDULES[pipeline.schedule].placement
        return [placement(rank, layout.pp, pipeline.stages) for rank in range(layout.pp)]

    def _running_sums(
        self, samples: int, inner: InnerLayout, ways: Ways
    ) -> tuple[list[float], list[float]]:
        """Return running sums over units: of forward passes, and of both passes with the loss."""
        times, precision, (tp, cp, tensor) = self.timing(samples), self._candidates.precision, inner
        plans = [
            (stride, _plan(tp=tp, cp=cp, tensor=tensor, sp=sp, precision=precision))
            for stride, sp in ways
        ]
        forward_s, both_s = [], []
        exchanges: list[list[ExchangeSeconds]] = []
        for number, unit in enumerate(self._units):
            part = work_share(plans[0][1], unit)
            if (alike := self._alike[number]) == number:
                exchanges_s = [
                    exchange_s(plan, self._network, self._units, number, samples, stride)
                    for stride, plan in plans
                ]
            else:
                exchanges_s = exchanges[alike]
            exchanges.append(exchanges_s)
            once_s, back_s = times.forward_s[number], times.backward_s[number]
            forward_s.append(once_s * part + min(each.forward_s for each in exchanges_s))
            both_s.append(
                (once_s + back_s) * part
                + min(each.forward_s + each.backward_s for each in exchanges_s)
            )
        both_s[-1] += times.loss_s
        return [0.0, *accumulate(forward_s)], [0.0, *accumulate(both_s)]


def _first_alike(units: Sequence[UnitCounts]) -> list[int]:
    """Return for each unit the first one with the same counts, between units of the same counts."""
    counts = [None, *(replace(unit, name="") for unit in units), None]
    first = dict[Any, int]()
    between = zip(counts, counts[1:], counts[2:], strict=False)
    return [first.setdefault(each, number) for number, each in enumerate(between)]


_SAME: Final = 1e-9  #: relative difference of steps below which two plans count as one
_PARTITIONS: Final = 20  #: partitions that are simulated to cut a pipeline again, about
_LEAST_GAIN: Final = 1e-3  #: share of a step that each compression of a plan must save
_DEFAULTS: Final = FIELDS["gradients"].default, FIELDS["links"].default
_ACTIONS: Final = 10  #: six passes and messages of a stage, of which some are simulated again


@dataclass(frozen=True, slots=True)
class Work:
    """Workload and system to project."""

    units: UnitTable
    timing: UnitTiming
    network: Network
    global_batch_size: int
    optimizer: str  #: name of the optimizer in tasks
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

    def node_sent_bytes(self, projection: Projection) -> float:
        """Return the bytes that node 0 sends to others for the projected plan's replicas."""
        stages = Stages(projection.plan, self.units, projection.cuts)
        return replica_node_bytes(stages, self.network)

    def gains(self, projection: Projection) -> bool:
        """Return whether each compression of the projected plan shortens its step.

        True for plans without compression.
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
    """The best plans of a search, and its counts."""

    best: list[Projection] = field(default_factory=list)  #: best plans, the fastest first
    considered: int = 0  #: valid plans whose memory was computed
    too_large: int = 0  #: considered plans that do not fit into memory, even with recomputation
    projected: int = 0  #: considered plans whose programs were simulated
    left: int = 0  #: considered plans that were not simulated because the budget was spent
    left_at_least_s: float | None = None  #: lower bound on the step time of the plans left
    nearest: tuple[ParallelPlan, int] | None = None
    #: the too large plan that needs the least memory, and the bytes of its fullest device


def groups(candidates: Candidates, bounds: GroupBounds) -> Iterator[tuple[Layout, PassOrder]]:
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
        self._heap: list[tuple[float, int, tuple[Layout, PassOrder] | ParallelPlan]] = []
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

    def _push(self, at_least_s: float, found: tuple[Layout, PassOrder] | ParallelPlan) -> None:
        heapq.heappush(self._heap, (at_least_s, next(self._number), found))

    def _expand(self, layout: Layout, pipeline: PassOrder, at_least_s: float) -> None:
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
