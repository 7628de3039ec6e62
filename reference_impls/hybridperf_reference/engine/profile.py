"""Time the units of a model in whole training steps, and messages and collectives of ranks."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist

from hybridperf.plan import ParallelPlan
from hybridperf.projection.profile import Transfer
from hybridperf.projection.units import UnitTimes
from hybridperf_reference.engine.data_parallel import DataParallel
from hybridperf_reference.engine.executor import WholeModel
from hybridperf_reference.engine.link import LINK_CODECS, Link, LinkKey
from hybridperf_reference.engine.loss import BatchLoss
from hybridperf_reference.engine.mesh import Mesh
from hybridperf_reference.engine.optim import build_optimizer
from hybridperf_reference.engine.parallelize import finalize_gradients, parallelize
from hybridperf_reference.engine.rng import RngStreams
from hybridperf_reference.engine.timing import StepTimer
from hybridperf_reference.engine.update import Update

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from hybridperf.projection.profile import Communication
    from hybridperf.tasks.task import Task
    from hybridperf_reference.engine.chain import Chain

__all__ = [
    "Marks",
    "UnitProfiler",
    "max_over_ranks",
    "mean_over_ranks",
    "measure_averaging_work",
    "measure_transfers",
    "median_of_means",
]

_WARM_UP_STEPS: Final = 3
_FEWEST_STEPS: Final = 3  # steps measured
_GROUP_STEPS: Final = 5  # steps of a mean
_UPDATES: Final = 7  # updates of each unit alone, which divide the time of the whole update


@dataclass(slots=True)
class Marks:
    """The marks of one step."""

    begin: Any = None
    forward: list[Any] = field(default_factory=list)  # after each unit
    backward: dict[int, Any] = field(default_factory=dict)
    # by unit: when the gradient of its outputs arrived
    computed: Any = None
    end: Any = None


class UnitProfiler:
    """Times the units of ``chain`` in training steps of one rank without parallelism.

    Units timed alone have other cache contents than in training: their sum differs from a step by
    up to 40 %. Here the engine trains unbroken steps, with a mark at the end of each unit's forward
    pass and at the arrival of each boundary's gradient; the times between marks tile the step.

    ``precision`` is a plan's. ``clock`` gives seconds on the CPU; on accelerators, device events
    are recorded. Weights do not change: the learning rate is 0.
    """

    def __init__(
        self,
        chain: Chain,
        task: Task,
        device: torch.device,
        *,
        precision: str = "fp32",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        plan, mesh = ParallelPlan.parse(f"precision={precision}"), Mesh(device, None)
        frozen = replace(task, optimizer=replace(task.optimizer, lr=0.0, end_lr=0.0))
        self._chain, self._task, self._plan, self._mesh = chain, frozen, plan, mesh
        self._timer = StepTimer(device, clock)
        replicas = DataParallel(plan, mesh, self._timer)
        self._streams = RngStreams(0, plan, mesh)
        self._part = parallelize(
            chain,
            [slice(0, len(chain.units))],
            chain.probe(),
            plan=plan,
            mesh=mesh,
            replicas=replicas,
            streams=self._streams,
        )
        (model,) = self._part.modules
        self._model = model.train()
        loss = BatchLoss(chain.objective, plan, mesh)
        self._passes = WholeModel(model, loss, plan, replicas, self._timer)
        self._update = Update(self._part, frozen, plan, mesh)
        self._shares: list[float] = []
        self._examples: dict[int, tuple[Tensor, Tensor]] = {}

    def measure(
        self,
        microbatches: Sequence[int],
        *,
        steps: int,
        most_s: float = 30.0,
        meet: Callable[[float], float] = lambda elapsed_s: elapsed_s,
    ) -> list[UnitTimes]:
        """Return the median times of ``steps`` marked steps of each of ``microbatches`` samples.

        They alternate with as many unmarked steps, which give the step time, and follow one another
        as in training, with warm caches. After ``most_s`` seconds the measurement ends, with three
        steps or more. ``meet`` returns the maximum over ranks: of the elapsed seconds, for equal
        numbers of steps, and of each step's seconds, since the slowest rank ends a step.
        """
        return [self._measure(size, steps=steps, most_s=most_s, meet=meet) for size in microbatches]

    def _measure(
        self, microbatch: int, *, steps: int, most_s: float, meet: Callable[[float], float]
    ) -> UnitTimes:
        marked: list[Marks] = []
        whole_s: list[float] = []
        start = time.perf_counter()
        for number in range(_WARM_UP_STEPS + steps):
            for with_marks in (True, False) if number % 2 else (False, True):
                elapsed_s = meet(time.perf_counter() - start)
                marks = self.step(microbatch, marked=with_marks)
                seconds = meet(self.seconds(marks))
                if number < _WARM_UP_STEPS:
                    continue
                if with_marks:
                    marked.append(marks)
                else:
                    whole_s.append(seconds)
            if len(marked) >= _FEWEST_STEPS and elapsed_s > most_s:
                break
        self._timer.collect()
        return self.times(microbatch, marked, median_of_means(whole_s))

    def step(self, microbatch: int, *, marked: bool = True) -> Marks:
        """Train one step of ``microbatch`` samples with the engine; with marks if ``marked``."""
        inputs, targets = self._example(microbatch)
        marks = Marks()
        with self._marking(marks) if marked else contextlib.nullcontext():
            marks.begin = self._timer.mark()
            self._streams.begin_step(0)
            self._passes.compute_gradients(0, inputs, targets, self._update.scale.factor)
            finalize_gradients(self._part, plan=self._plan, mesh=self._mesh)
            marks.computed = self._timer.mark()
            self._update.apply(0, factor=self._update.scale.factor, measure=False)
            marks.end = self._timer.mark()
        return marks

    def seconds(self, marks: Marks) -> float:
        """Return the seconds of the whole step with ``marks``."""
        _synchronize(self._mesh.device)
        return self._timer.seconds(marks.begin, marks.end)

    def _example(self, microbatch: int) -> tuple[Tensor, Tensor]:
        if microbatch not in self._examples:
            inputs, targets = self._chain.example(microbatch)
            device = self._mesh.device
            self._examples[microbatch] = inputs.to(device), targets.to(device)
        return self._examples[microbatch]

    @contextlib.contextmanager
    def _marking(self, marks: Marks) -> Iterator[None]:
        """Record ``marks`` in the passes of the body.

        Replacing a unit's ``forward`` costs less than a module's hook.
        """

        def marked(forward: Callable[[Tensor], Tensor], number: int, inputs: Tensor) -> Tensor:
            outputs = forward(inputs)
            marks.forward.append(self._timer.mark())
            if outputs.requires_grad:
                outputs.register_hook(lambda _: marks.backward.update({number: self._timer.mark()}))
            return outputs

        modules = [unit.module for unit in self._chain.units]
        before = [module.forward for module in modules]
        for number, module in enumerate(modules):
            module.forward = partial(marked, module.forward, number)
        yield
        for module, forward in zip(modules, before, strict=True):
            module.forward = forward

    def times(
        self, microbatch: int, marked: Sequence[Marks], whole_s: float | None = None
    ) -> UnitTimes:
        """Return the medians over steps of the times between marks, scaled to the step time.

        The step time is ``whole_s``, the seconds of an unmarked step, since marks take time; if
        None, the median of the marked steps.
        """
        units = range(len(self._chain.units))
        between = self._timer.seconds
        rows = []
        for marks in marked:
            # A unit without gradients ends where the pass does.
            arrived = [marks.backward.get(number, marks.computed) for number in units]
            left = [marks.computed, *arrived[:-1]]
            entered = [marks.begin, *marks.forward[:-1]]
            rows.append(
                [
                    *(between(entered[n], marks.forward[n]) for n in units),
                    *(between(arrived[n], left[n]) for n in units),
                    between(marks.forward[-1], arrived[-1]),
                    between(marks.computed, marks.end),
                ]
            )
        medians = [statistics.median(column) for column in zip(*rows, strict=True)]
        scale = (whole_s or statistics.median(map(sum, rows))) / sum(medians)
        *parts, loss, update = (scale * value for value in medians)
        return UnitTimes(
            microbatch,
            forward_s=tuple(parts[: len(units)]),
            backward_s=tuple(parts[len(units) :]),
            loss_s=loss,
            update_s=tuple(update * share for share in self._update_shares()),
        )

    def _update_shares(self) -> list[float]:
        """Return each unit's share of an update, by the time of updating its parameters alone.

        Units that share parameters have them in each share: with one copy, as here, the shares
        without repeats add up to 1.
        """
        if self._shares:
            return self._shares
        seconds, whole, seen = [], 0.0, set[torch.nn.Parameter]()
        for unit in self._chain.units:
            parameters = [p for p in unit.module.parameters() if p.requires_grad]
            if not parameters:
                seconds.append(0.0)
                continue
            for parameter in parameters:
                parameter.grad = torch.zeros_like(parameter)
            optimizer = build_optimizer(unit.module, self._task.optimizer)
            marks = [self._timer.mark()]
            for _ in range(_UPDATES):
                optimizer.step()
                marks.append(self._timer.mark())
            _synchronize(self._mesh.device)
            # The median leaves out the first update, which makes the optimizer's state.
            seconds.append(
                statistics.median(self._timer.seconds(*pair) for pair in pairwise(marks))
            )
            optimizer.zero_grad()
            first = sum(p.numel() for p in parameters if p not in seen)
            whole += seconds[-1] * first / sum(p.numel() for p in parameters)
            seen.update(parameters)
        self._shares = [each / whole if whole else 0.0 for each in seconds]
        return self._shares


def median_of_means(seconds: Sequence[float]) -> float:
    """Return the median of the means of groups of ``seconds``.

    Unlike the median it includes recurring delays, and unlike the mean it excludes single
    outliers.
    """
    starts = range(0, max(1, len(seconds) - _GROUP_STEPS + 1), _GROUP_STEPS)
    return statistics.median(statistics.mean(seconds[at : at + _GROUP_STEPS]) for at in starts)


def max_over_ranks(seconds: float, device: torch.device) -> float:
    """Return the maximum ``seconds`` over all ranks; a collective."""
    if not dist.is_initialized():
        return seconds
    most_s = torch.tensor(seconds, dtype=torch.float32, device=device)
    dist.all_reduce(most_s, dist.ReduceOp.MAX)
    return most_s.item()


def mean_over_ranks(times: UnitTimes, device: torch.device) -> UnitTimes:
    """Return the mean of the ``times`` of all ranks."""
    if not dist.is_initialized():
        return times
    own = [*times.forward_s, *times.backward_s, *times.update_s, times.loss_s]
    totals = torch.tensor(own, dtype=torch.float32, device=device)
    dist.all_reduce(totals)
    *means, loss_s = (totals / dist.get_world_size()).tolist()
    count = len(times.forward_s)
    forward, backward, update = (tuple(means[at : at + count]) for at in range(0, 3 * count, count))
    return UnitTimes(times.microbatch, forward, backward, loss_s, update)


_CPU_SIZES: Final = 7  # number of message sizes, from 1 KiB to 4 MiB
_ACCELERATOR_SIZES: Final = 10  # to 256 MiB: smaller messages do not fill such links
_TIMES: Final = 15
_WARM_UP: Final = 3
_TURNS: Final = 7  # processes slow down and recover
_FEW: Final = 5  # measurements in a turn
_COMPUTED_S: Final = 0.02  # shortest computation that overlaps an all-reduce
_TRIED_ELEMENTS: Final = 2**18  # elements of the all-reduce that calibrates the overlapped one
_MOST_TIMES: Final = 64  # largest overlapped all-reduce, over the calibration
_ELEMENT_BYTES: Final = 4
_KEY: Final = LinkKey(0, 0, 0, 0, gradient=False)  # uncompressed messages do not depend on it


def measure_transfers(device: torch.device) -> list[Transfer]:
    """Time messages between pairs of ranks, and collectives of groups of each size.

    A collective over all ranks. Groups are of consecutive ranks; all groups of a size communicate
    at the same time, as in a plan. Times are means over ranks of the ranks' medians.
    """
    world = dist.get_world_size()
    powers = range(_CPU_SIZES if device.type == "cpu" else _ACCELERATOR_SIZES)
    found = []
    for ranks in range(2, world + 1):
        if world % ranks:
            continue
        group, _ = dist.new_subgroups(ranks)
        assert isinstance(group, dist.ProcessGroup), "every rank is in one of them"
        kinds: dict[Communication, Callable[[int], Callable[[], None]]] = {
            "all_reduce": partial(_all_reduce, group, device),
            "reduce_scatter": partial(_reduce_scatter, group, device),
            "all_gather": partial(_all_gather, group, device),
        }
        if ranks == 2:
            back, _ = dist.new_subgroups(ranks)
            assert isinstance(back, dist.ProcessGroup), "as above"
            kinds["send"] = partial(_ping_pong, group, back, device)
        for kind, of_size in kinds.items():
            trips = 2 if kind == "send" else 1
            times = []
            for size in (1024 * 4**power for power in powers):
                # Collectives need parts of equal size.
                elements = size // _ELEMENT_BYTES // ranks * ranks
                seconds = _mean(_seconds(of_size(elements), device), device)
                times.append((elements * _ELEMENT_BYTES, seconds / trips))
            found.append(Transfer(kind, ranks, tuple(times)))
    return found


def measure_averaging_work(device: torch.device, compute: Callable[[], object]) -> float:
    """Return the share of an all-reduce's seconds that it takes from its ranks' computation.

    A collective. With c, a and b the seconds of computation, of an all-reduce of all ranks that
    takes half as long, and of both overlapped: (b - c) / a. On the CPU, sending and receiving use
    the cores that compute. The share exceeds 1 where overlap is slower than sequence, because of
    shared caches. The all-reduce takes half of c, so that it ends before the computation.
    """
    group = dist.group.WORLD
    assert group is not None, "ranks have joined"
    step_s, reduce_s = (
        _mean(_seconds(each, device), device)
        for each in (compute, _all_reduce(group, device, _TRIED_ELEMENTS))
    )
    steps = math.ceil(_COMPUTED_S / step_s)
    count = round(min(steps * step_s / 2 / reduce_s, _MOST_TIMES) * _TRIED_ELEMENTS)
    values = torch.zeros(max(1, count), device=device)

    def compute_all() -> None:
        for _ in range(steps):
            compute()

    def both() -> None:
        work = dist.all_reduce(values, group=group, async_op=True)
        compute_all()
        _wait(work)

    each = (compute_all, _all_reduce(group, device, values.numel()), both)
    shares = []
    for _ in range(_TURNS):
        compute_s, reduce_s, both_s = (_mean(_seconds(one, device, _FEW), device) for one in each)
        shares.append((both_s - compute_s) / reduce_s)
    return max(statistics.median(shares), 0.0)


def _seconds(communicate: Callable[[], object], device: torch.device, times: int = _TIMES) -> float:
    """Return the median seconds of ``communicate``."""
    seconds = []
    for _ in range(_WARM_UP + times):
        _synchronize(device)
        start = time.perf_counter()
        communicate()
        _synchronize(device)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[_WARM_UP:])


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _mean(value: float, device: torch.device) -> float:
    """Return the mean over all ranks."""
    total = torch.tensor(value, device=device)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def _ping_pong(
    forth: dist.ProcessGroup, back: dist.ProcessGroup, device: torch.device, elements: int
) -> Callable[[], None]:
    """Return a function that sends a message from rank 0 of a pair to rank 1, and one back."""
    own = dist.get_rank(forth)
    values = torch.zeros(elements, device=device)

    def link(group: dist.ProcessGroup) -> Link:
        codec = LINK_CODECS["none"]
        return Link(group, (elements,), values.dtype, device, codec=codec, max_pending_sends=1)

    away, home = (link(forth), link(back)) if own == 0 else (link(back), link(forth))

    def exchange() -> None:
        if own == 0:
            away.send(values, _KEY)
            home.receive(another=False)
        else:
            home.receive(another=False)
            away.send(values, _KEY)
        away.drain()

    return exchange


def _all_reduce(
    group: dist.ProcessGroup, device: torch.device, elements: int
) -> Callable[[], None]:
    values = torch.zeros(elements, device=device)
    return lambda: _wait(dist.all_reduce(values, group=group, async_op=True))


def _reduce_scatter(
    group: dist.ProcessGroup, device: torch.device, elements: int
) -> Callable[[], None]:
    whole = torch.zeros(elements, device=device)
    own = torch.zeros(elements // dist.get_world_size(group), device=device)
    return lambda: _wait(dist.reduce_scatter_tensor(own, whole, group=group, async_op=True))


def _all_gather(
    group: dist.ProcessGroup, device: torch.device, elements: int
) -> Callable[[], None]:
    whole = torch.zeros(elements, device=device)
    own = torch.zeros(elements // dist.get_world_size(group), device=device)
    return lambda: _wait(dist.all_gather_into_tensor(whole, own, group=group, async_op=True))


def _wait(work: dist.Work | None) -> None:
    if work is not None:
        work.wait()
