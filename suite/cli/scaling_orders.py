"""What ``hybridperf scale`` has to make: one order for each number of devices."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from typing import TYPE_CHECKING, Final, NoReturn

from suite.cli.commands.run import order_of
from suite.findings import Finding
from suite.plan import ParallelPlan
from suite.refusal import ExitCode, Refusal
from suite.systems.affinity import only_cores
from suite.systems.describe import describe
from suite.systems.devices import usable_devices
from suite.systems.name import entry_name, system_name

if TYPE_CHECKING:
    from suite.runs.order import Order

__all__ = ["on_devices", "scaling_orders"]

_FEWEST_RUNS: Final = 3
_BATCH: Final = "training.global_batch_size"


def on_devices(count: int) -> contextlib.AbstractContextManager[None]:
    """Let runs use ``count`` cores: a rank's threads would take those of the devices left out.

    An accelerator has one rank; nothing needs to be held back there.
    """
    return contextlib.nullcontext() if usable_devices().kind == "gpu" else only_cores(count)


def scaling_orders(options: argparse.Namespace) -> dict[int, Order]:
    """Return what to make on each number of devices, fewest first.

    Raises:
        Refusal: exit status 2 where the command line makes no scaling.
    """
    if options.task is None or options.devices is None:
        reason = "expected a task with --devices N,N,..., or results with --from"
        raise Refusal(f"{reason}, found neither; see 'hybridperf scale --help'.", ExitCode.USAGE)
    counts: tuple[int, ...] = options.devices
    if len(set(counts)) < max(2, len(counts)):
        found = ",".join(map(str, counts))
        _refuse("two numbers of devices or more, each once", found, "write --devices 1,2")
    if options.runs is not None and options.runs < _FEWEST_RUNS:
        expected = f"{_FEWEST_RUNS} runs or more, which make an olympic mean"
        _refuse(expected, str(options.runs), f"write --runs {_FEWEST_RUNS}")
    plans = _plans(counts, options.plan or ["dp=1"])
    return {count: _order(options, count, plans[count]) for count in sorted(counts)}


def _plans(counts: tuple[int, ...], texts: list[str]) -> dict[int, ParallelPlan]:
    plans = [ParallelPlan.parse(text) for text in texts]
    if len(plans) == 1:
        return {count: _spread(plans[0], count) for count in counts}
    if len(plans) != len(counts):
        expected = f"one plan, or one for each of {len(counts)} numbers of devices"
        _refuse(expected, f"{len(plans)}", "give --plan as often as there are numbers, or once")
    for count, plan in zip(counts, plans, strict=True):
        if plan.ranks != count:
            expected = f"a plan of {count} ranks for {count} devices"
            _refuse(expected, f"{plan} of {plan.ranks}", "name plans in the order of --devices")
    return dict(zip(counts, plans, strict=True))


def _spread(plan: ParallelPlan, count: int) -> ParallelPlan:
    """Return ``plan`` with as many replicas as ``count`` devices take."""
    each = plan.ranks // plan.dp
    if count % each:
        expected = f"numbers of devices that a replica's {each} ranks divide"
        remedy = "choose others, or give one --plan for each number"
        _refuse(expected, f"{count} with plan {plan}", remedy)
    return dataclasses.replace(plan, dp=count // each)


def _order(options: argparse.Namespace, count: int, plan: ParallelPlan) -> Order:
    order = order_of(argparse.Namespace(**vars(options) | {"plan": str(plan)}))
    weak = options.kind == "weak"
    if weak:
        overrides = dict(order.overrides)
        batch = order.task().training.global_batch_size
        fewest = min(options.devices)
        if batch * count % fewest:
            expected = f"a global batch that {fewest} devices divide, as --weak keeps their share"
            _refuse(expected, str(batch), f"change it with --set {_BATCH}=N")
        overrides[_BATCH] = batch * count // fewest
        order = dataclasses.replace(order, overrides=tuple(overrides.items()))
    if weak or order.system is not None:
        with on_devices(count):
            machine = order.system or system_name(describe())
        name = entry_name(machine, f"{plan.slug}{'-weak' if weak else ''}")
        order = dataclasses.replace(order, system=name)
    return order


def _refuse(expected: str, found: str, remedy: str) -> NoReturn:
    raise Refusal(Finding("scale.orders", expected, found, remedy), ExitCode.USAGE)
