"""Plan for a system: what is projected on it, and how terminal and JSON show it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec

from hybridperf.cli.printing import print_line, print_stage, terminal_width
from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import visible
from hybridperf.projection.network import Network, NetworkLink
from hybridperf.projection.project import duration, parts_of, why_slower
from hybridperf.projection.search import Candidates, Work, cut_again, search
from hybridperf.projection.systems import accuracy_of, find_system
from hybridperf.report.terminal import table_text, wrapped
from hybridperf.run.profiles import measure_profile, units_of
from hybridperf.score.statistics import fewest_runs, olympic_mean
from hybridperf.system.accelerators import device_memory_bytes, usable_devices
from hybridperf.tasks.mlperf import mlperf_benchmark

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from hybridperf.plan import ParallelPlan, TrainingConfig
    from hybridperf.projection.project import Projection
    from hybridperf.projection.search import Methods, Ranking
    from hybridperf.projection.systems import Accuracy
    from hybridperf.projection.units import UnitTiming
    from hybridperf.tasks.task import Task

__all__ = [
    "AUTO",
    "HERE",
    "Setting",
    "Shown",
    "fastest_here",
    "plans_json",
    "print_plans",
    "samples_to_target",
    "setting_of",
]

AUTO: Final = "auto"  #: value of ``--plan`` for the plan that is projected to be fastest here
HERE: Final = "here"  #: system whose units and links are measured
_ALONE: Final = Network(1, NetworkLink(0.0, float("inf")))  #: network of one device
#: heading and `keep` of `table_text`, by column
_COLUMNS: Final = {
    "plan": 9,
    "measured": 9,
    "step": 9,
    "range": 8,
    "samples/s": 8,
    "bubble": 7,
    "exposed": 7,
    "memory": 8,
    "node sends": 6,
    "target": 8,
}
_GB: Final = 10**9
_MB: Final = 1e6
_ALIKE: Final = 5e-4  #: relative difference of steps that is not shown
_MOST_FASTER: Final = 3  #: plans that are named as faster than the current one


@dataclass(frozen=True, slots=True)
class Shown:
    """A request for plans, and the plans that were found."""

    task: str
    system: str  #: name of the system in the request
    source: str  #: source of the times: the device of the catalogue, or the measured profile
    devices: int
    global_batch_size: int
    precision: str
    device_bytes: int | None
    equivalent: Ranking
    other: Ranking | None  #: ranking of plans that are not equivalent; None: not asked for
    samples_to_target: float | None  #: mean of the task's reference runs at this batch size
    accuracy: Accuracy  #: errors of projected times
    plan_accuracy: Accuracy  #: errors of projected ratios of two plans
    measured_s: dict[str, float] = field(default_factory=dict)  #: measured steps by plan
    node_sent_bytes: dict[str, float] = field(default_factory=dict)
    #: bytes that node 0 sends to others in a step for its replicas, by plan
    current: Projection | None = None  #: projection of the plan that the user trains with now

    def step_s(self, projection: Projection) -> float:
        """Return the seconds of a step: as measured, else as projected."""
        return self.measured_s.get(str(projection.plan), projection.step_s)

    def range_s(self, projection: Projection) -> tuple[float, float]:
        """Return the range of a projected step, which contains nine of ten measured steps."""
        return self.accuracy.range_s(projection.step_s)

    def faster(self) -> list[tuple[Projection, float]]:
        """Return the equivalent plans that are faster than the current one, and their speedups.

        Two measured steps are compared as they are; of others, a speedup counts if it exceeds the
        error of projected ratios.
        """
        if self.current is None:
            return []
        found, known = [], self.measured_s.keys()
        for each in self.in_order(self.equivalent):
            speedup = self.step_s(self.current) / self.step_s(each) - 1
            both = {str(each.plan), str(self.current.plan)} <= known
            if each.plan != self.current.plan and speedup > (
                0 if both else self.plan_accuracy.nine_in_ten
            ):
                found.append((each, speedup))
        return found

    def in_order(self, ranking: Ranking) -> list[Projection]:
        """Return the best plans of ``ranking``, by the best that is known of their steps."""
        return sorted(ranking.best, key=self.step_s)

    def why_second(self) -> str | None:
        """Return why the second of the equivalent plans lost, if there is one, as a sentence."""
        first, second = (*self.in_order(self.equivalent)[:2], None, None)[:2]
        if first is None or second is None:
            return None
        measured = [str(each.plan) in self.measured_s for each in (first, second)]
        if not any(measured):
            return why_slower(second, first)
        more_s = self.step_s(second) - self.step_s(first)
        longer = f"{duration(more_s)} ({more_s / self.step_s(first):.1%}) longer"
        if not all(measured):
            kinds = ["measured" if each else "projected" for each in measured]
            return f"{second.plan} takes {longer} as {kinds[1]} than {first.plan} as {kinds[0]}."
        projected_s = second.step_s - first.step_s
        kind = "longer" if projected_s >= 0 else "shorter"
        return (
            f"{second.plan} takes {longer} as measured; projected was "
            f"{duration(abs(projected_s))} {kind}."
        )

    def time_to_target_s(self, projection: Projection) -> float | None:
        """Return the time to train to the target without evaluations, if it is known.

        Of plans that compute something else it is not: they may take other numbers of samples.
        """
        if self.samples_to_target is None or not projection.plan.equivalent:
            return None
        return self.samples_to_target / self.global_batch_size * self.step_s(projection)


def print_plans(shown: Shown) -> None:
    """Print the rankings in tables of the terminal's width."""
    width = terminal_width()

    def say(text: str) -> None:
        print_line("\n".join(wrapped(visible(text), width)))

    devices = f"{shown.devices} device{'s' if shown.devices > 1 else ''}"
    say(
        f"{shown.task} on {devices} of {shown.system}: batch {shown.global_batch_size}, "
        f"{shown.precision}; projected from {shown.source}"
    )
    print_line()
    if shown.current is not None:
        _print_table(shown, [shown.current], width)
        print_line()
        for note in _current_notes(shown, shown.current):
            say(note)
        print_line()
    best = shown.in_order(shown.equivalent)
    _print_table(shown, best, width)
    print_line()
    for note in _notes(shown):
        say(note)
    if shown.other is None:
        return
    print_line()
    say("Plans that are not equivalent to single-process training (open division):")
    print_line()
    others = shown.in_order(shown.other)
    _print_table(shown, others, width)
    if others and best:
        ratio = shown.step_s(others[0]) / shown.step_s(best[0]) - 1
        more = f"{abs(ratio):.1%} {'longer' if ratio > 0 else 'shorter'} than"
        both = {str(each.plan) for each in (others[0], best[0])} <= shown.measured_s.keys()
        known = "measured" if both else "projected"
        compared = "as long as" if abs(ratio) < _ALIKE else more
        print_line()
        say(
            f"A step of {others[0].plan} is {known} to be {compared} {best[0].plan}; how many "
            "samples it takes to the target only runs can tell."
        )


def plans_json(shown: Shown) -> dict[str, object]:
    """Return the rankings as docs/planning.md describes them."""
    return {
        "task": shown.task,
        "system": shown.system,
        "source": shown.source,
        "devices": shown.devices,
        "global_batch_size": shown.global_batch_size,
        "precision": shown.precision,
        "device_memory_bytes": shown.device_bytes,
        "samples_to_target": shown.samples_to_target,
        "equivalent": _ranking_json(shown, shown.equivalent),
        "other": _ranking_json(shown, shown.other) if shown.other else None,
        "why_second": shown.why_second(),
        "accuracy": msgspec.structs.asdict(shown.accuracy),
        "current": _current_json(shown, shown.current) if shown.current else None,
    }


def _print_table(shown: Shown, best: Sequence[Projection], width: int) -> None:
    rows = [_cells(shown, each) for each in best]
    used = [(index, head) for index, head in enumerate(_COLUMNS) if any(row[index] for row in rows)]
    print_line(
        table_text(
            [head for _, head in used],
            [[row[index] for index, _ in used] for row in rows],
            width,
            [_COLUMNS[head] for _, head in used],
        )
    )


def _cells(shown: Shown, projection: Projection) -> list[str]:
    measured = shown.measured_s.get(str(projection.plan))
    target_s = shown.time_to_target_s(projection)
    return [
        str(projection.plan),
        "" if measured is None else duration(measured),
        duration(projection.step_s),
        _between(*shown.range_s(projection)),
        f"{projection.samples_per_s:,.0f}",
        f"{projection.idle_share:.1%}",
        duration(projection.exposed_communication_s),
        _size(max(projection.memory_bytes)),
        _size(sent) if (sent := shown.node_sent_bytes.get(str(projection.plan))) else "",
        "unknown" if target_s is None else duration(target_s),
    ]


def _between(low_s: float, high_s: float) -> str:
    """Return a range of durations, such as ``4.1-8.2 s``."""
    low, unit = duration(low_s).rsplit(" ", 1)
    high = duration(high_s)
    return f"{low}-{high}" if high.endswith(f" {unit}") else f"{low} {unit}-{high}"


def _current_notes(shown: Shown, current: Projection) -> Iterator[str]:
    """Yield the memory headroom of the current plan, and the plans that are faster."""
    headroom = _headroom_bytes(shown, current)
    if headroom is None:
        yield "memory headroom: unknown, as the system states no memory size; give --memory-gb"
    else:
        parts = ", ".join(f"rank {rank} {_signed_size(free)}" for rank, free in enumerate(headroom))
        size = _size(shown.device_bytes or 0)
        yield f"memory headroom of {current.plan}, free of {size} of a device: {parts}"
    faster, error = shown.faster(), shown.plan_accuracy
    for each, speedup in faster[:_MOST_FASTER]:
        yield f"{each.plan} is {speedup:.1%} faster, which exceeds the error of projections."
    if not faster:
        best = shown.in_order(shown.equivalent)[0]
        speedup = shown.step_s(current) / shown.step_s(best) - 1
        gain = f"{best.plan} is {speedup:.1%} faster, within the error of projections"
        yield f"no plan is faster: {gain}" if speedup > _ALIKE else "no plan is projected faster"
    yield (
        f"error of projected ratios of two plans: nine of ten within {error.nine_in_ten:.1%}, "
        f"median {error.median:.1%}, {error.results} results ({error.source})"
    )


def _headroom_bytes(shown: Shown, projection: Projection) -> list[int] | None:
    """Return the free bytes of the device of each pipeline rank; None if its memory is unknown."""
    if shown.device_bytes is None:
        return None
    return [shown.device_bytes - needed for needed in projection.memory_bytes]


def _signed_size(count: int) -> str:
    return _size(count) if count >= 0 else f"lacks {_size(-count)}"


def _size(count: float) -> str:
    """Return a number of bytes in 10^9 or, if it is less, in 10^6."""
    return f"{count / _GB:.2f} GB" if count >= _GB else f"{count / _MB:.1f} MB"


def _notes(shown: Shown) -> Iterator[str]:
    if sentence := shown.why_second():
        yield sentence
    accuracy = shown.accuracy
    yield (
        f"range: nine of ten errors are within {accuracy.nine_in_ten:.1%}, median "
        f"{accuracy.median:.1%}, worst {accuracy.worst:.1%}, {accuracy.results} results "
        f"({accuracy.source})"
    )
    ranking = shown.equivalent
    yield (
        f"{ranking.considered:,} plans looked at, {ranking.too_large:,} of them too large for "
        f"memory, {ranking.projected:,} simulated; the others take longer by their lower bounds"
        + _left(ranking)
    )
    if shown.samples_to_target is None:
        yield "target: unknown, the task has no reference runs at this batch size"
    else:
        yield (
            f"target: {shown.samples_to_target:,.0f} samples, the mean of the task's reference "
            "runs, without evaluations"
        )


def _left(ranking: Ranking) -> str:
    if ranking.left_at_least_s is None:
        return "."
    return (
        f", but {ranking.left:,} were too long to simulate; these take "
        f"{duration(ranking.left_at_least_s)} at least."
    )


def _ranking_json(shown: Shown, ranking: Ranking) -> dict[str, Any]:
    return {
        "plans": [_plan_json(shown, each) for each in shown.in_order(ranking)],
        "considered": ranking.considered,
        "too_large": ranking.too_large,
        "simulated": ranking.projected,
        "left": ranking.left,
        "left_at_least_s": ranking.left_at_least_s,
    }


def _current_json(shown: Shown, current: Projection) -> dict[str, object]:
    return {
        **_plan_json(shown, current),
        "headroom_bytes": _headroom_bytes(shown, current),
        "ratio_accuracy": msgspec.structs.asdict(shown.plan_accuracy),
        "faster": [
            {"plan": str(each.plan), "speedup": speedup} for each, speedup in shown.faster()
        ],
    }


def _plan_json(shown: Shown, projection: Projection) -> dict[str, object]:
    return {
        "plan": str(projection.plan),
        "cuts": list(projection.cuts),
        "step_s": projection.step_s,
        "step_range_s": list(shown.range_s(projection)),
        "measured_step_s": shown.measured_s.get(str(projection.plan)),
        "samples_per_s": projection.samples_per_s,
        "idle_share": projection.idle_share,
        "exposed_communication_s": projection.exposed_communication_s,
        "parts_s": parts_of(projection),
        "busy_s": list(projection.busy_s),
        "memory_bytes": list(projection.memory_bytes),
        "sent_bytes": projection.sent_bytes,
        "node_sent_bytes": shown.node_sent_bytes.get(str(projection.plan)),
        "time_to_target_s": shown.time_to_target_s(projection),
    }


@dataclass(frozen=True, slots=True)
class Setting:
    """A task on the devices of a system."""

    task: Task
    system: str
    source: str  #: of the times, for messages
    precision: str
    work: Work
    config: TrainingConfig
    accuracy: Accuracy  #: errors of projected times
    plan_accuracy: Accuracy  #: errors of projected ratios of two plans

    def ranking(self, methods: Methods, most: int) -> Ranking:
        """Return the ``most`` plans for all devices that are projected to be fastest.

        Raises:
            UserError: exit status 2 if no plan is valid or fits into memory, with the nearest one.
        """
        ranking = search(self._candidates(self.config.devices, methods), self.work, most=most)
        cut_again(ranking, self.work)
        if not ranking.best and methods == "equivalent":
            self._refuse(ranking)
        return ranking

    def projection(self, plan: ParallelPlan) -> Projection:
        """Return the projection of ``plan``."""
        return self.work.project(plan)

    def current(self, plan: ParallelPlan) -> Projection:
        """Return the projection of ``plan``, which the user trains with now.

        Raises:
            UserError: exit status 2 if the plan is not valid here, or not for all devices.
        """
        if plan.ranks != self.config.devices:
            expected = f"a plan of {self.config.devices} ranks, one on each of --devices"
            found = f"--plan {plan} with {plan.ranks}"
            raise UserError.of("plan.current", expected, found, "correct one of them")
        if findings := plan.check(self.config):
            raise UserError(findings[0], ExitCode.USAGE)
        return self.projection(self.work.cut(plan) if plan.cut == "ampa" else plan)

    def shown(
        self,
        equivalent: Ranking,
        other: Ranking | None = None,
        measured_s: dict[str, float] | None = None,
        current: Projection | None = None,
    ) -> Shown:
        """Return rankings in this setting, to be shown, with the steps that were measured.

        ``current`` is the projection of the plan that the user trains with now.
        """
        every = [*equivalent.best, *(other.best if other else ()), *([current] if current else ())]
        return Shown(
            task=self.task.name,
            system=self.system,
            source=self.source,
            devices=self.config.devices,
            global_batch_size=self.work.global_batch_size,
            precision=self.precision,
            device_bytes=self.work.device_bytes,
            equivalent=equivalent,
            other=other,
            samples_to_target=samples_to_target(self.task),
            measured_s=measured_s or {},
            node_sent_bytes={str(each.plan): self.work.node_sent_bytes(each) for each in every},
            current=current,
            accuracy=self.accuracy,
            plan_accuracy=self.plan_accuracy,
        )

    def _candidates(self, ranks: int, methods: Methods) -> Candidates:
        per_node = self.work.network.devices_per_node
        return Candidates(self.config, ranks, per_node, methods, self.precision)

    def _refuse(self, ranking: Ranking) -> NoReturn:
        devices, batch = self.config.devices, self.work.global_batch_size
        if ranking.nearest is not None:
            plan, needed = ranking.nearest
            limit = self.work.device_bytes or 0
            expected = f"a plan that needs at most {limit / _GB:.3g} GB on a device"
            found = f"{needed / _GB:.3g} GB under {plan}, the plan that needs the least"
            remedy = "add devices, lower training.global_batch_size, or give more --memory-gb"
            raise UserError.of("plan.memory", expected, found, remedy, path=self.task.name)
        count = _most_divided(self.config, devices - 1)
        expected = f"a number of devices among which a batch of {batch} samples can be divided"
        remedy = f"use {count}, or change training.global_batch_size with --set"
        raise UserError.of("plan.devices", expected, str(devices), remedy, path=self.task.name)


def setting_of(
    path: Path,
    task: Task,
    *,
    system: str,
    devices: int,
    precision: str = "fp32",
    memory_gb: float | None = None,
    remeasure: bool = False,
    busy_too: bool = False,
) -> Setting:
    """Return ``task``, of the file at ``path``, on ``devices`` of ``system``.

    Each has ``memory_gb`` of memory if given. Of this machine, units and links are measured, which
    takes up to minutes, unless they have been; ``remeasure`` and ``busy_too`` are those of
    `measure_profile`.

    Raises:
        UserError: exit status 2 if the system is not known, 4 if the units of a task of one's own
            cannot be counted, or units cannot be measured.
    """
    units = units_of(path, print_stage)
    timing: UnitTiming
    if system == HERE:
        profile = measure_profile(
            path, devices, precision, remeasure=remeasure, busy_too=busy_too, say=print_stage
        )
        timing, source = profile.times, f"a profile of {profile.date[:10]}"
        network = profile.network(devices) if devices > 1 else _ALONE
        accuracy = plan_accuracy = accuracy_of("profile")
        kind, device_bytes = usable_devices().kind, device_memory_bytes(devices)
    else:
        found = find_system(system, [HERE])
        timing = found.timing(units, precision)
        network, source, kind = found.network, found.device.name, "gpu"
        device_bytes = found.memory_bytes or None
        accuracy = found.accuracy or accuracy_of("device model")
        plan_accuracy = found.accuracy or accuracy_of("two plans")
    most_bytes = device_bytes if memory_gb is None else round(memory_gb * _GB)
    work = Work.of_task(task, units, timing, network, most_bytes)
    config = task.training_config(devices, kind, stages=units.most_stages)
    return Setting(task, system, source, precision, work, config, accuracy, plan_accuracy)


def _most_divided(config: TrainingConfig, most: int) -> int:
    """Return the largest number of ranks up to ``most`` that some plan has."""
    counts = range(most, 1, -1)
    return next((n for n in counts if any(True for _ in Candidates(config, n, n).layouts())), 1)


def fastest_here(path: Path, task: Task) -> ParallelPlan:
    """Return the equivalent plan for the devices of this machine that is projected to be fastest.

    It uses all of them, or as many as some plan does.

    Raises:
        UserError: as `setting_of` and `Setting.ranking`.
    """
    here = usable_devices()
    stages = units_of(path, print_stage).most_stages
    config = task.training_config(here.count, here.kind, stages=stages)
    count = _most_divided(config, here.count)
    setting = setting_of(path, task, system=HERE, devices=count)
    return setting.ranking("equivalent", 1).best[0].plan


def samples_to_target(task: Task) -> float | None:
    """Return the olympic mean of the samples that the reference runs of ``task`` took.

    None if there are none at its global batch size, since other sizes take other numbers.
    """
    reference, drops = task.reference, mlperf_benchmark(task.name).drops
    if reference is None or reference.global_batch_size != task.training.global_batch_size:
        return None
    if len(samples := reference.samples_to_target) < fewest_runs(drops):
        return None
    return olympic_mean(samples, drops)
