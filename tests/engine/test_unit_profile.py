"""Marks in whole steps: they tile the step and stand where the units' passes are."""

from __future__ import annotations

import itertools

import pytest
import torch

from hybridperf.tasks.registry import find_task
from hybridperf_reference.engine.profile import UnitProfiler, median_of_means
from hybridperf_reference.models import chain_of
from tests.engine.odd_models import ODD
from tests.families import LAPTOP


def _profiler(name: str) -> tuple[UnitProfiler, list[int]]:
    """Return a profiler whose clock counts its readings, and the numbers of the passes' ends."""
    task, ticks = find_task(name), itertools.count()
    chain = chain_of(task, 0)
    profiler = UnitProfiler(chain, task, torch.device("cpu"), clock=lambda: float(next(ticks)))
    return profiler, list(range(len(chain.units)))


@pytest.mark.parametrize("name", LAPTOP)
def test_marks_tile_the_step(name: str) -> None:
    profiler, units = _profiler(name)

    marks = profiler.step(2)

    backward = [marks.backward[number] for number in units]
    order = [marks.begin, *marks.forward, *backward[::-1], marks.computed, marks.end]
    assert len(marks.forward) == len(units)
    assert order == sorted(order)
    times = profiler.times(2, [marks])
    parts = [*times.forward_s, *times.backward_s, times.loss_s, *times.update_s]
    assert sum(parts) == pytest.approx(profiler.seconds(marks))
    assert sum(profiler.times(2, [marks], 7.0).forward_s) == pytest.approx(
        7.0 * sum(times.forward_s) / sum(parts)
    )


def test_a_parameter_that_units_share_is_updated_once() -> None:
    """The second of two units has 12 parameters of its own, and 144 of the first."""
    family, ticks = ODD["tied"], itertools.count()
    profiler = UnitProfiler(
        family.chain(), family.task(), torch.device("cpu"), clock=lambda: float(next(ticks))
    )
    marks = profiler.step(2)

    times = profiler.times(2, [marks])

    parts = [*times.forward_s, *times.backward_s, times.loss_s, *times.update_s]
    assert times.update_s[3] == times.update_s[1] > 0
    assert sum(parts) - times.update_s[3] * 144 / 156 == pytest.approx(profiler.seconds(marks))


def test_each_time_is_of_its_unit() -> None:
    """A unit that waits, forwards or backwards, shows where it is."""
    task = find_task("vit/laptop")
    chain = chain_of(task, 0)
    now = [0.0]

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(_: object, values: torch.Tensor) -> torch.Tensor:
            now[0] += 3.0
            return values.clone()

        @staticmethod
        def backward(_: object, gradient: torch.Tensor) -> torch.Tensor:
            now[0] += 5.0
            return gradient

    module, forward = chain.units[2].module, chain.units[2].module.forward
    module.forward = lambda values: Slow.apply(forward(values))
    profiler = UnitProfiler(chain, task, torch.device("cpu"), clock=lambda: now[0])

    times = profiler.times(2, [profiler.step(2)])

    assert times.forward_s == tuple(3.0 if n == 2 else 0.0 for n in range(len(chain.units)))
    assert times.backward_s == tuple(5.0 if n == 2 else 0.0 for n in range(len(chain.units)))
    assert times.loss_s == 0.0


def test_all_ranks_stop_after_as_many_steps() -> None:
    """Another rank that is slower has this one stop, too."""
    task = find_task("vit/laptop")
    profiler = UnitProfiler(chain_of(task, 0), task, torch.device("cpu"))
    met = 0

    def meet(_: float) -> float:
        nonlocal met
        met += 1
        return 100.0 if met > 10 else 0.0

    profiler.measure([1], steps=50, most_s=10.0, meet=meet)

    # Before and after each step with marks and without: three to warm up and three measured.
    assert met == 2 * 2 * (3 + 3)


def test_a_step_lasts_until_the_slowest_rank_ends_it() -> None:
    task = find_task("vit/laptop")
    profiler = UnitProfiler(chain_of(task, 0), task, torch.device("cpu"))

    (times,) = profiler.measure([1], steps=3, meet=lambda _: 7.0)

    parts = [*times.forward_s, *times.backward_s, times.loss_s, *times.update_s]
    assert sum(parts) == pytest.approx(7.0)


def test_what_happens_once_does_not_count() -> None:
    often = [1.0, 2.0, 1.0, 1.0, 1.0] * 5

    assert median_of_means(often) == pytest.approx(1.2)
    assert median_of_means([*often[:-1], 100.0]) == pytest.approx(1.2)
    assert median_of_means([*often, 100.0]) == pytest.approx(1.2)
    assert median_of_means([3.0]) == 3.0


def test_the_weights_stay() -> None:
    task = find_task("vit/laptop")
    chain = chain_of(task, 0)
    before = [p.clone() for unit in chain.units for p in unit.module.parameters()]

    UnitProfiler(chain, task, torch.device("cpu")).measure([1, 2], steps=2)

    after = [p for unit in chain.units for p in unit.module.parameters()]
    assert all(map(torch.equal, before, after))
