"""What runtimes add to steps: fitted, and counted where plans use them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hybridperf.plan import ParallelPlan
from hybridperf.projection.fit import RuntimeWork, averaging_runtime, fit_work, pass_runtime
from hybridperf.projection.project import project
from tests.projection.tables import FAST, equal_units, plain, timing_of

TABLE = equal_units(4)
TIMING = timing_of(TABLE)  # 1 s and 2 s in each unit
WORKS = (
    RuntimeWork("blocking", 0.5, tensor_s=0.01),
    RuntimeWork("overlapped", 0.25, byte_s=1e-5),
    RuntimeWork("reducer", 0.125),
    RuntimeWork("sharded", 0.1, unit_s=0.2),
    RuntimeWork("1f1b", pass_s=0.1),
    RuntimeWork("gpipe", pass_s=0.3),
    RuntimeWork("program", pass_s=0.2),
)


def _added_s(text: str) -> float:
    """Return by how much the step of a plan is longer with the work of runtimes."""

    def step_s(works: tuple[RuntimeWork, ...]) -> float:
        network = replace(FAST, library="gloo", runtimes=works)
        plan = ParallelPlan.parse(text)
        found = project(plan, TABLE, TIMING, network, global_batch_size=64, optimizer="sgd")
        return found.step_s

    return step_s(WORKS) - step_s(())


@pytest.mark.parametrize(
    ("plan", "averages", "passes"),
    [
        ("dp=1", None, None),
        ("dp=2", "overlapped", None),
        ("dp=2,sync=blocking", "blocking", None),
        ("dp=2,staleness=1", "reducer", None),
        ("dp=2,gradients=powersgd", "powersgd", None),
        ("dp=2,zero=3", "sharded", None),
        ("pp=2,microbatches=4", None, "1f1b"),
        ("pp=2,schedule=zbv,microbatches=4", None, "zbv"),
        ("pp=2,microbatches=4,links=int8", None, "program"),
        ("dp=2,pp=2,microbatches=4,staleness=1,flush=off", "reducer", "program"),
    ],
)
def test_each_plan_has_its_runtimes(plan: str, averages: str | None, passes: str | None) -> None:
    parsed = ParallelPlan.parse(plan)

    assert (averaging_runtime(parsed), pass_runtime(parsed)) == (averages, passes)


@pytest.mark.parametrize(
    ("plan", "added_s"),
    [
        ("dp=1", 0.0),
        ("dp=2,sync=blocking", 0.5 + 8 * 0.01),  # two tensors in each of four units
        ("dp=2", 0.25 + 16_000 * 1e-5),
        ("dp=2,microbatches=2", 0.25 + 16_000 * 1e-5),  # averaged once a step
        ("dp=2,staleness=1", 0.125),
        ("dp=2,zero=1", 0.1 + 4 * 0.2),
        ("dp=2,zero=2,microbatches=2", 0.1 + 2 * 4 * 0.2),
        ("dp=2,zero=3", 0.1 + 1.5 * 4 * 0.2),  # gathered twice, scattered once
        ("dp=2,zero=3,microbatches=2", 0.1 + 3 * 4 * 0.2),
        ("pp=2,microbatches=4", 2 * (4 + 1) * 0.1),
        ("pp=2,schedule=gpipe,microbatches=4", 2 * (4 + 1) * 0.3),
        ("pp=2,microbatches=4,links=int8", 2 * (4 + 1) * 0.2),
        ("pp=2,microbatches=4,staleness=1,flush=off", 2 * 4 * 0.2),
    ],
)
def test_their_work_makes_steps_longer(plan: str, added_s: float) -> None:
    assert _added_s(plan) == pytest.approx(added_s)


def test_work_is_fitted_to_steps_of_models() -> None:
    models = [
        equal_units(count, parameters=parameters).units
        for count, parameters in ((2, 100), (8, 100), (8, 900), (4, 9000))
    ]
    models[2] = tuple(replace(unit, parameter_groups=plain(900, tensors=8)) for unit in models[2])
    wanted = RuntimeWork("sharded", 1e-4, 2e-4, 3e-6, 4e-10)

    found = fit_work("sharded", [(units, wanted.averaging_s(units)) for units in models])

    assert found.averaging_s(TABLE.units) == pytest.approx(wanted.averaging_s(TABLE.units))
    assert (found.unit_s, found.tensor_s) == pytest.approx((wanted.unit_s, wanted.tensor_s))
