"""Settings that commands project plans in: a task on devices of a system or of this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from hybridperf.cli.plan_screen import Shown
from hybridperf.cli.printing import print_stage
from hybridperf.errors import ExitCode, UserError
from hybridperf.plan import TrainingConfig
from hybridperf.projection.network import Network, NetworkLink
from hybridperf.projection.search import Candidates, Work, cut_again, search
from hybridperf.projection.systems import accuracy_of, find_system
from hybridperf.run.profiles import measure_profile, units_of
from hybridperf.score.statistics import fewest_runs, olympic_mean
from hybridperf.system.accelerators import device_memory_bytes, usable_devices
from hybridperf.tasks.mlperf import mlperf_benchmark

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.plan import ParallelPlan
    from hybridperf.projection.project import Projection
    from hybridperf.projection.search import Methods, Ranking
    from hybridperf.projection.systems import Accuracy
    from hybridperf.projection.units import UnitTable, UnitTiming
    from hybridperf.tasks.task import Task

__all__ = ["AUTO", "HERE", "Setting", "fastest_here", "samples_to_target", "setting_of"]

AUTO: Final = "auto"  #: as a plan: the one that is projected to be fastest here
HERE: Final = "here"  #: the system whose units and links are measured
_GB: Final = 10**9
_ALONE: Final = Network(1, NetworkLink(0.0, float("inf")))  #: of one device


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
    config = _config(task, units, devices, kind)
    return Setting(task, system, source, precision, work, config, accuracy, plan_accuracy)


def _config(task: Task, units: UnitTable, devices: int, kind: str) -> TrainingConfig:
    """Return what plans must fit, with one rank on a device."""
    return TrainingConfig(
        units=1 + sum(unit.begins_stage for unit in units.units[1:]),
        global_batch_size=task.training.global_batch_size,
        devices=devices,
        ranks_per_device=1,
        device_kind=kind,
        tensor_sizes=task.parallel.tensor_sizes,
        tokens=task.parallel.tokens,
        batch_norm=task.parallel.batch_norm,
        tied=task.parallel.tied,
    )


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
    config = _config(task, units_of(path, print_stage), here.count, here.kind)
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
