"""``hybridperf plan``: which parallel plans are projected to be fastest, and why."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.cli.options import add_format, add_overrides, whole_number
from hybridperf.cli.planning import HERE, plans_json, print_plans, setting_of
from hybridperf.cli.printing import print_json, print_stage
from hybridperf.errors import ExitCode, UserError
from hybridperf.plan import ParallelPlan
from hybridperf.plan.fields import FIELDS
from hybridperf.run.request import RunRequest
from hybridperf.run.step_time import measure_steps
from hybridperf.system.accelerators import usable_devices
from hybridperf.tasks.overrides import apply_overrides, parse_overrides
from hybridperf.tasks.registry import read_task, resolve_task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridperf.projection.project import Projection

__all__ = ["EXAMPLES", "add_arguments", "execute"]

EXAMPLES: Final = """\
hybridperf plan bert_large/cluster --devices 8 --system a100-sxm --precision bf16
hybridperf plan vgg/cluster --devices 8 --system rtx-2080ti --all-methods
hybridperf plan resnet/laptop --devices 2 --measure 3
hybridperf plan bert_large/cluster --devices 8 --system mine.toml --plan dp=8,precision=bf16
hybridperf plan bert_large/cluster --devices 4096 --set training.global_batch_size=65536 \\
    --system h100-sxm --json"""

_MOST_DEVICES: Final = 1_000_000
_MEASURED_STEPS: Final = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``hybridperf plan``."""
    parser.add_argument("task", help="task, such as resnet/laptop, or a TOML file with one")
    parser.add_argument(
        "--devices", type=_devices, required=True, metavar="N", help="devices that plans use"
    )
    parser.add_argument(
        "--system",
        default=HERE,
        metavar="NAME",
        help="kind of node that the devices are in, such as a100-sxm, from the catalogue; a system "
        "file, such as mine.toml, which 'hybridperf fit' writes; here: this machine, whose units "
        "and links are measured once (default: here)",
    )
    parser.add_argument(
        "--memory-gb",
        type=_gigabytes,
        metavar="GB",
        help="memory of a device, in 10^9 bytes (default: the system's)",
    )
    parser.add_argument(
        "--precision",
        choices=tuple(FIELDS["precision"].words),
        help="precision of all plans (default: the precision of --plan, else fp32)",
    )
    parser.add_argument(
        "--plan",
        metavar="CURRENT",
        help="plan that you train with now: its step time and memory headroom, and which plans are "
        "faster by more than the error of projections",
    )
    add_overrides(parser, "training.global_batch_size=1024")
    parser.add_argument(
        "--all-methods",
        action="store_true",
        help="also rank plans with delayed updates or compressed messages, in a table of their "
        "own, since they are not equivalent to single-process training",
    )
    parser.add_argument(
        "--top", type=whole_number, default=5, metavar="N", help="plans to show (default: 5)"
    )
    parser.add_argument(
        "--measure",
        type=whole_number,
        default=0,
        metavar="N",
        help=f"train {_MEASURED_STEPS} steps under each of the first N plans here, and rank them "
        "by measured steps",
    )
    parser.add_argument(
        "--remeasure",
        action="store_true",
        help="measure units and links of this machine again, although they are cached",
    )
    parser.add_argument(
        "--busy",
        action="store_true",
        help="use units and links that were measured while other processes used the processors, "
        "without caching them (default: measure again, then refuse)",
    )
    add_format(parser, "text", "json")


def execute(options: argparse.Namespace) -> ExitCode:
    """Rank the plans for a number of devices, and print the best."""
    for option in ("measure", "remeasure", "busy"):
        if getattr(options, option) and options.system != HERE:
            reason = f"expected --system {HERE} with --{option}, found {options.system!r:.60}"
            raise UserError(f"{reason}; drop one of them.", ExitCode.USAGE)
    if options.system == HERE and options.devices > (most := usable_devices().count):
        expected, remedy = f"at most {most}, which are here", "lower it, or name a --system"
        raise UserError.of("plan.devices", expected, f"--devices {options.devices}", remedy)
    current, precision = _current_plan(options)
    path = resolve_task(options.task)
    task = read_task(path)
    overrides = parse_overrides(task, options.overrides)
    task = apply_overrides(task, overrides)
    setting = setting_of(
        path,
        task,
        system=options.system,
        devices=options.devices,
        precision=precision,
        memory_gb=options.memory_gb,
        remeasure=options.remeasure,
        busy_too=options.busy,
    )
    now = None if current is None else setting.current(current)
    wanted = max(options.top, options.measure)
    equivalent = setting.ranking("equivalent", wanted)
    other = setting.ranking("other", wanted) if options.all_methods else None
    measured: dict[str, float] = {}
    for ranking in (equivalent, other):
        if ranking is not None and options.measure:
            measured |= _measured(path, overrides, ranking.best[: options.measure])
    if now is not None and options.measure:
        measured |= _measured(path, overrides, [now])
    shown = setting.shown(equivalent, other, measured, now)
    if options.format == "json":
        print_json(plans_json(shown))
    else:
        print_plans(shown)
    return ExitCode.OK


def _current_plan(options: argparse.Namespace) -> tuple[ParallelPlan | None, str]:
    """Return the plan of ``--plan``, if it is given, and the precision of all plans."""
    default = FIELDS["precision"].default
    if options.plan is None:
        return None, options.precision or default
    current = ParallelPlan.parse(options.plan)
    stated = None if current.precision == default else current.precision
    precision = options.precision or stated or default
    if stated not in {None, precision}:
        expected = f"a plan in the precision {precision} of --precision"
        raise UserError.of("plan.precision", expected, f"--plan {current}", "drop one of them")
    return dataclasses.replace(current, precision=precision), precision


def _measured(
    path: Path, overrides: dict[str, object], projections: Sequence[Projection]
) -> dict[str, float]:
    """Return the measured steps of ``projections`` by plan."""
    steps = {}
    for each in projections:
        request = RunRequest(
            task_path=path,
            plan=each.plan,
            runs=1,
            out=Path("runs"),
            division="open",  # nothing is published, so no bounds of the closed one hold
            overrides=tuple(overrides.items()),
        )
        print_stage(f"training {_MEASURED_STEPS} steps under {each.plan}")
        steps[str(each.plan)] = measure_steps(request, _MEASURED_STEPS).step_s
    return steps


def _devices(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) <= _MOST_DEVICES):
        reason = f"expected a whole number of devices from 1 to {_MOST_DEVICES}, found {text!r:.40}"
        raise argparse.ArgumentTypeError(reason)
    return int(text)


def _gigabytes(text: str) -> float:
    try:
        size = float(text)
    except ValueError:
        size = 0.0
    if not 0 < size < 1e6:  # NaN, too, is not
        reason = f"expected gigabytes above 0, such as 80, found {text!r:.40}"
        raise argparse.ArgumentTypeError(reason)
    return size
