"""``hybridperf fit``: fit a system to the logs of runs, for ``hybridperf plan --system FILE``."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Final

import msgspec

from hybridperf.cli.options import add_format, add_jobs
from hybridperf.cli.printing import print_json, print_line, terminal_width
from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import visible
from hybridperf.log import keys
from hybridperf.log.package import read_package, result_at
from hybridperf.parallel_map import parallel_map
from hybridperf.plan import ParallelPlan
from hybridperf.projection.fit import Observation, accuracy_sentence, fit_system, fit_toml
from hybridperf.projection.systems import find_system, known_systems
from hybridperf.projection.units import load_units
from hybridperf.report.judgement import found_packages
from hybridperf.report.terminal import table_text, wrapped
from hybridperf.run.folder import environment_refusal
from hybridperf.run.profiles import cached_units
from hybridperf.score.scaling import devices_in_use
from hybridperf.score.score import score_result
from hybridperf.system.catalog import (
    accelerators_per_node,
    find_accelerator,
    known_accelerators,
    node_count,
)
from hybridperf.tasks.registry import read_task, task_names, task_path
from hybridperf.untrusted import COUNT_CAP, whole

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence

    from hybridperf.log.package import Package, Result
    from hybridperf.projection.fit import Fit, Parameter
    from hybridperf.projection.systems import System
    from hybridperf.score.score import ResultScore

__all__ = ["EXAMPLES", "add_arguments", "execute"]

EXAMPLES: Final = """\
hybridperf fit runs -o mine.toml
hybridperf fit training_results_v2.1/NVIDIA -o dgx-a100.toml
hybridperf fit submissions/acme --base v100-pcie -o acme.toml"""

#: benchmark of MLPerf -> task of the suite with the same model
_TASKS: Final = {"bert": "bert_large/cluster", "resnet": "resnet50/cluster"}
#: Published gradients are averaged in 16 bits, and not hidden behind the backward pass: submissions
#: clip gradients, or add them up with the memory bandwidth of the passes (studies/rounds).
_PUBLISHED: Final = "sync=blocking,gradients=bf16"
#: steady over end-to-end throughput, or the reverse: more if evaluations were logged at other times
#: than they were made
_MOST_APART: Final = 2.0
_LONGEST: Final = 100  #: bound on the characters of a device's name
_UNKNOWN: Final = "not determined"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``hybridperf fit``."""
    parser.add_argument(
        "logs",
        type=Path,
        nargs="+",
        metavar="LOGS",
        help="logs, result folders, submissions or rounds of MLPerf, all of one kind of device",
    )
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="FILE",
        help="system file to write, such as mine.toml (default: none)",
    )
    parser.add_argument(
        "--base",
        metavar="NAME",
        help="system that the fit begins with, and whose values are kept where the logs determine "
        "none (default: the catalogue's system with the device of most results)",
    )
    add_jobs(parser)
    add_format(parser, "text", "json")


def execute(options: argparse.Namespace) -> ExitCode:
    """Fit a system to all usable results, print its parameters, and write it to ``--out``."""
    if options.out is not None and options.out.suffix != ".toml":
        remedy = "add .toml, by which 'plan --system' knows a file"
        raise UserError.of("fit.out", "a file name that ends in .toml", str(options.out), remedy)
    named = None if options.base is None else find_system(options.base)
    packages = _packages(options.logs)
    readings = _without_copies(parallel_map(_read, list(packages.items()), options.jobs))
    base, used = _of_one_device(readings, named)
    fit = fit_system(base, [_observed(each, base) for each in used])
    left_out = Counter(each.why for each in readings if each not in used and each.why)
    left_out.update(
        f"on another device than {_kind(used[0])}: {_kind(each)}"
        for each in readings
        if each not in used and not each.why
    )
    if options.out is not None:
        try:
            options.out.write_text(fit_toml(fit, options.out.stem), encoding="utf-8")
        except OSError as error:
            raise environment_refusal(error, options.out.parent) from error
    if options.format == "json":
        print_json(_json(fit, left_out))
    else:
        _print(fit, _kind(used[0]), left_out, options.out)
    return ExitCode.OK


@dataclass(frozen=True, slots=True)
class _Reading:
    """What a result says of its devices and its throughput, or why it is not used."""

    place: str  #: name of the folder of the result, safe to print
    why: str = ""  #: reason why it is not used; "" if it is
    hardware: str = ""  #: catalogue's name of the accelerator, else the name in the description
    cores: int = 0  #: cores of a rank; 0 on accelerators
    observation: Observation | None = None
    is_published: bool = False  #: whether it is a result of a round, whose log has no plan


def _packages(paths: Sequence[Path]) -> dict[Package, frozenset[str]]:
    """Return the results at or below ``paths``, and the names of their logs; empty for all logs."""
    found: dict[Package, frozenset[str]] = {}
    for path in paths:
        if not path.exists():
            expected, remedy = "a log, a result folder or a round", "correct the path"
            raise UserError.of("fit.logs", expected, "nothing", remedy, path=str(path))
        if path.is_dir():
            found |= dict.fromkeys(found_packages([path]), frozenset())
        elif (package := result_at(path.absolute().parent)) is not None:
            found[package] = found.get(package, frozenset()) | {path.name}
    if not found:
        raise UserError.of(
            "fit.logs",
            "results in <org>/results/<system>/<benchmark>, with <org>/systems/<system>.json",
            "none",
            "name logs or folders of results",
            path=", ".join(map(str, paths)),
            exit_code=ExitCode.ENVIRONMENT,
        )
    return found


def _read(item: tuple[Package, frozenset[str]]) -> _Reading:
    """Read the throughput of a result and the devices that it used."""
    package, names = item
    result = read_package(package)
    if names:
        runs = [run for run in result.runs if run.log.path.rpartition("/")[2] in names]
        result = dataclasses.replace(result, runs=tuple(runs))
    try:
        return _usable(result, score_result(result))
    except UserError as error:
        found = error.finding
        why = f"expected {found.expected}, found {found.found}" if found else str(error)
        return _Reading(package.name, visible(why))


def _usable(result: Result, score: ResultScore) -> _Reading:
    """Return the observation of a result, or the reason why it is not used."""
    place, system = result.package.name, result.system or {}
    rates = list(_rates(score))
    used = devices_in_use(score.plan, system)
    if not rates:
        return _Reading(place, "no run with a steady throughput")
    if used is None:
        return _Reading(place, "no description of the system that counts its devices")
    if used.oversubscribed:
        return _Reading(place, "more ranks than devices")
    batches = {repr(run.log.value(keys.GLOBAL_BATCH_SIZE)) for run in result.runs}
    first = result.runs[0].log
    batch = whole(first.value(keys.GLOBAL_BATCH_SIZE), 1, COUNT_CAP)
    if batch is None or len(batches) > 1:
        return _Reading(place, "no global batch size that all runs share")
    known = find_accelerator(str(system.get("accelerator_model_name") or ""))
    part = "host_processor" if used.kind == "cores" else "accelerator"
    stated = str(system.get(f"{part}_model_name") or "").strip()
    hardware = known.name if known else visible(stated[:_LONGEST])
    if not hardware:
        return _Reading(place, "no description of the system that names its devices")
    if not score.plan and "closed" not in {
        _division(score.division),
        _division(system.get("division")),
    }:
        return _Reading(place, "not of the closed division, which fixes the model")
    if score.plan:
        plan, task = ParallelPlan.parse(score.plan), score.benchmark
        path = task_path(task) if task in task_names() else result.package.task_file
        units = cached_units(path) if path.is_file() else None
        clips = units is not None and read_task(path).optimizer.clip_norm > 0
    else:
        steps = whole(first.value(keys.GRADIENT_ACCUMULATION_STEPS), 1, COUNT_CAP) or 1
        plan = ParallelPlan.parse(f"dp={used.used},microbatches={steps},{_PUBLISHED}")
        units = load_units(_TASKS[score.benchmark]) if score.benchmark in _TASKS else None
        clips = False
    if units is None:
        return _Reading(place, f"no known units of {visible(score.benchmark)}")
    if batch < plan.dp * plan.microbatches:
        return _Reading(place, "micro-batches smaller than the number of devices")
    if used.kind == "cores":
        per_node = max(1, plan.ranks // (node_count(system) or 1))
    else:
        per_node = accelerators_per_node(system) or 1
    return _Reading(
        place,
        hardware=hardware,
        cores=used.used // plan.ranks if used.kind == "cores" else 0,
        observation=Observation(place, units, plan, batch, per_node, fmean(rates), clips),
        is_published=not score.plan,
    )


def _without_copies(readings: Iterable[_Reading]) -> list[_Reading]:
    """Return readings of which only the first of several equal ones has an observation.

    Rounds repeat results of earlier rounds, which would make leave-one-out errors too small.
    """
    found, seen = list[_Reading](), set[object]()
    for each in readings:
        one = each.observation
        facts = one and (one.units.task, str(one.plan), one.global_batch_size, one.samples_per_s)
        found.append(_Reading(each.place, "the runs of another result") if facts in seen else each)
        seen |= {facts} - {None}
    return found


def _rates(score: ResultScore) -> Iterator[float]:
    """Yield the steady samples/s of the completed runs."""
    for run in score.completed:
        steady, whole_run = run.steady_samples_per_s, run.throughput_samples_per_s
        if steady and (not whole_run or 1 / _MOST_APART <= steady / whole_run <= _MOST_APART):
            yield steady


def _division(stated: object) -> str:
    """Return a division as logs and descriptions spell it, or its usual name."""
    name = stated.strip(" /").casefold() if isinstance(stated, str) else ""
    return "closed" if name == "close" else name


def _kind(reading: _Reading) -> str:
    cores = f", {reading.cores} core{'s' * (reading.cores > 1)} a rank" if reading.cores else ""
    return f"{reading.hardware}{cores}"


def _of_one_device(
    readings: Sequence[_Reading], named: System | None
) -> tuple[System, list[_Reading]]:
    """Return the system that the fit begins with, and the results on one kind of device."""
    usable = [each for each in readings if each.observation is not None]
    if not usable:
        expected = "a result whose step time can be projected"
        remedy = "name logs of other results"
        found, count = Counter(each.why for each in readings).most_common(1)[0]
        detail = f"{count} result{'s' * (count > 1)} with {found}"
        raise UserError.of("fit.logs", expected, detail, remedy, exit_code=ExitCode.INVALID)
    own = [each for each in usable if named and each.hardware == named.device.name] or usable
    (kind, _), *_ = Counter(map(_kind, own)).most_common(1)
    used = [each for each in own if _kind(each) == kind]
    hardware = used[0].hardware
    base = named or next((each for each in known_systems() if each.device.name == hardware), None)
    if base is None:
        expected = "a device of the catalogue's systems, or the system to begin with"
        names = ", ".join(each.name for each in known_systems())
        raise UserError.of("fit.base", expected, kind, f"give --base one of {names}")
    if base.device.name != hardware:
        source = f"peaks of {base.device.name}, to which speed factors refer"
        other = msgspec.structs.replace(
            base.device, name=hardware, names=(), source=source, memory_gb=None
        )
        device = next((each for each in known_accelerators() if each.name == hardware), other)
        base = dataclasses.replace(base, device=device)
    nodes = Counter(each.observation.devices_per_node for each in used if each.observation)
    per_node = nodes.most_common(1)[0][0]
    adapters = max(1, round(base.adapters_per_node * per_node / base.devices_per_node))
    library = "gloo" if used[0].cores else base.library
    base = dataclasses.replace(
        base, devices_per_node=per_node, adapters_per_node=adapters, library=library
    )
    return base, used


def _observed(reading: _Reading, base: System) -> Observation:
    """Return the observation of a reading; published results compute in 16 bits."""
    observation = reading.observation
    assert observation is not None, "only usable readings are observed"
    if not reading.is_published:
        return observation
    is_bf16 = "bf16" in base.device.peak_tflops
    plan = dataclasses.replace(observation.plan, precision="bf16" if is_bf16 else "fp16")
    return dataclasses.replace(observation, plan=plan)


def _print(fit: Fit, kind: str, left_out: Counter[str], out: Path | None) -> None:
    width = terminal_width()

    def say(text: str) -> None:
        print_line("\n".join(wrapped(visible(text), width)))

    count = len(fit.observations)
    tasks = ", ".join(fit.tasks)
    results = f"{count} result{'s' * (count > 1)}"
    say(f"{results} of {tasks} on {kind}, fitted from {fit.base.name}")
    print_line()
    heads = ("parameter", "value", "95 % interval", "catalogue")
    print_line(table_text(heads, [_row(each) for each in fit.parameters], width))
    print_line()
    if not all(each.is_determined for each in fit.parameters):
        say(f"{_UNKNOWN}: by these logs; catalogue value kept")
    say(
        "half batch: micro-batch at which a device reaches half of its peak samples/s; it follows "
        "from the launch overhead and the speed factor"
    )
    say(accuracy_sentence(fit.accuracy))
    if fit.errors:
        worst = max(range(count), key=lambda number: abs(fit.errors[number]))
        say(f"worst: {fit.observations[worst].name}, projected {fit.errors[worst]:+.1%}")
    for why, number in left_out.most_common():
        say(f"left out: {number} result{'s' * (number > 1)}, {why}")
    if out is not None:
        say(f"wrote {out}; use it with: hybridperf plan TASK --devices N --system {out}")


def _row(parameter: Parameter) -> tuple[str, str, str, str]:
    unit = f" {parameter.unit}" if parameter.unit else ""
    interval = parameter.interval
    if not parameter.is_determined:
        shown = _UNKNOWN
    elif interval is None:
        shown = "unknown: too few results"
    else:
        shown = f"{interval[0]:.3g} to {interval[1]:.3g}"
    return parameter.name, f"{parameter.value:.3g}{unit}", shown, f"{parameter.catalogue:.3g}{unit}"


def _json(fit: Fit, left_out: Counter[str]) -> dict[str, object]:
    """Return the fit as docs/planning.md describes it."""
    accuracy = fit.accuracy
    return {
        "base": fit.base.name,
        "device": fit.system.device.name,
        "parameters": [
            {
                "name": each.name,
                "unit": each.unit,
                "value": each.value,
                "interval": each.interval and list(each.interval),
                "catalogue": each.catalogue,
                "determined": each.is_determined,
            }
            for each in fit.parameters
        ],
        "leave_one_out": accuracy
        and {
            "median": accuracy.median,
            "worst": accuracy.worst,
            "results": accuracy.results,
        },
        "results": [
            {"name": each.name, "plan": str(each.plan), "error": error}
            for each, error in zip(
                fit.observations, fit.errors or (None,) * len(fit.observations), strict=True
            )
        ],
        "left_out": dict(left_out),
    }
