"""The requests of ``hybridperf scale``: one for each number of devices."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from typing import TYPE_CHECKING, Final, NoReturn

from hybridperf.cli.commands.run import request_of
from hybridperf.errors import ExitCode, UserError
from hybridperf.plan import ParallelPlan
from hybridperf.system.accelerators import usable_devices
from hybridperf.system.describe import describe, entry_name, system_name
from hybridperf.system.host import restrict_cores

if TYPE_CHECKING:
    from hybridperf.run.request import RunRequest

__all__ = ["on_devices", "scaling_requests"]

_FEWEST_RUNS: Final = 3
_BATCH: Final = "training.global_batch_size"


def on_devices(count: int) -> contextlib.AbstractContextManager[None]:
    """Limit runs to ``count`` cores, because threads of a rank would use the remaining ones too.

    On accelerators this is a no-op: a run uses one per rank.
    """
    return contextlib.nullcontext() if usable_devices().kind == "gpu" else restrict_cores(count)


def scaling_requests(options: argparse.Namespace) -> dict[int, RunRequest]:
    """Return the request for each number of devices, in ascending order.

    Raises:
        UserError: exit status 2 if devices, runs or plans do not make a scaling series.
    """
    if options.task is None or options.devices is None:
        reason = "expected a task with --devices N,N,..., or results with --from"
        raise UserError(f"{reason}, found neither; see 'hybridperf scale --help'.", ExitCode.USAGE)
    counts: tuple[int, ...] = options.devices
    if len(set(counts)) < max(2, len(counts)):
        found = ",".join(map(str, counts))
        _refuse("two numbers of devices or more, each once", found, "write --devices 1,2")
    if options.runs is not None and options.runs < _FEWEST_RUNS:
        expected = f"{_FEWEST_RUNS} runs or more, which make an olympic mean"
        _refuse(expected, str(options.runs), f"write --runs {_FEWEST_RUNS}")
    plans = _plans(counts, options.plan or ["dp=1"])
    return {count: _request_of_count(options, count, plans[count]) for count in sorted(counts)}


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
    """Return ``plan`` with ``dp`` set so that it has ``count`` ranks."""
    each = plan.ranks // plan.dp
    if count % each:
        expected = f"numbers of devices that a replica's {each} ranks divide"
        remedy = "choose others, or give one --plan for each number"
        _refuse(expected, f"{count} with plan {plan}", remedy)
    return dataclasses.replace(plan, dp=count // each)


def _request_of_count(options: argparse.Namespace, count: int, plan: ParallelPlan) -> RunRequest:
    request = request_of(argparse.Namespace(**vars(options) | {"plan": str(plan)}))
    weak = options.kind == "weak"
    if weak:
        overrides = dict(request.overrides)
        batch = request.task().training.global_batch_size
        fewest = min(options.devices)
        if batch * count % fewest:
            expected = f"a global batch that {fewest} devices divide, as --weak keeps their share"
            _refuse(expected, str(batch), f"change it with --set {_BATCH}=N")
        overrides[_BATCH] = batch * count // fewest
        request = dataclasses.replace(request, overrides=tuple(overrides.items()))
    if weak or request.system is not None:
        with on_devices(count):
            machine = request.system or system_name(describe())
        name = entry_name(machine, f"{plan.slug}{'-weak' if weak else ''}")
        request = dataclasses.replace(request, system=name)
    return request


def _refuse(expected: str, found: str, remedy: str) -> NoReturn:
    raise UserError.of("scale.requests", expected, found, remedy)
