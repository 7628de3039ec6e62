"""Profiles of tasks on this machine: measured by the trainer's ranks, and cached."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding
from hybridperf.projection.profile import Profile
from hybridperf.run.trainer_answers import answer, cache, cache_place, made_with
from hybridperf.system.accelerators import probe_accelerators
from hybridperf.system.host import probe_processor
from hybridperf.system.noise import BUSY_SHARE, NoiseMeter
from hybridperf.tasks.registry import read_task
from hybridperf.untrusted import read_object

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hybridperf.tasks.task import Task

__all__ = ["cached_profile", "measure_profile", "profiled_microbatches"]

_SIZES: Final = 5
_LARGEST: Final = 64  #: samples of a micro-batch that is measured; larger ones are extrapolated
_STEPS: Final = 25  #: of each micro-batch
_KIND: Final = "profiles"
_ATTEMPTS: Final = 3


def measure_profile(
    path: Path,
    ranks: int,
    precision: str = "fp32",
    *,
    remeasure: bool = False,
    busy_too: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Profile:
    """Return the profile of the task at ``path`` with ``ranks`` on this machine, cached.

    It is measured, which takes seconds to minutes, unless the cache has one of the same task,
    machine, PyTorch and code; with ``remeasure`` in any case. Where other processes use the
    processors meanwhile, it is measured again, a few times. A profile that they have slowed is
    returned with ``busy_too`` only, and never cached. ``say`` is told of each stage in a line.

    Raises:
        UserError: exit status 4 if the trainer has no module for it, or ranks fail or leave no
            valid profile, or other processes use the processors.
    """
    task = read_task(path)
    if not remeasure and (found := cached_profile(task, ranks, precision)):
        return found
    for attempt in range(1, _ATTEMPTS + 1):
        again = f", attempt {attempt} of {_ATTEMPTS}" if attempt > 1 else ""
        say(f"{task.name}: measuring units and links on {ranks} ranks, for up to minutes{again}")
        meter = NoiseMeter()
        profile = _measured(path, task, ranks, precision)
        noise = meter.read()
        share = noise.others + noise.steal
        if share <= BUSY_SHARE:
            profile = dataclasses.replace(profile, made_with=_made_with(task))
            cache(_place(task, ranks, precision), profile.as_table())
            return profile
        say(f"{task.name}: other processes used {share:.0%} of the processors meanwhile")
        if busy_too:
            return profile
    raise UserError(
        Finding(
            "profile.busy",
            f"other processes to use at most {BUSY_SHARE:.0%} of the processors while units are "
            "measured",
            f"{share:.0%} in the last of {_ATTEMPTS} attempts",
            "end them, or name a plan or a --system; hybridperf plan --busy uses such a profile",
            task.name,
        ),
        ExitCode.ENVIRONMENT,
    )


def cached_profile(task: Task, ranks: int, precision: str = "fp32") -> Profile | None:
    """Return the cached profile of ``task``; None if there is none that holds here and now."""
    try:
        profile = Profile.from_table(read_object(_place(task, ranks, precision)))
    except (OSError, ValueError):
        return None  # also one of an earlier version: it is measured anew
    holds = (profile.task, profile.ranks, profile.precision) == (task.name, ranks, precision)
    return profile if holds and profile.made_with == _made_with(task) else None


def profiled_microbatches(task: Task) -> list[int]:
    """Return the micro-batches to measure: one sample, and halves of the largest."""
    largest = min(_LARGEST, task.training.global_batch_size)
    return sorted({1, *(max(1, largest >> power) for power in range(_SIZES - 1))})


def _made_with(task: Task) -> dict[str, str]:
    """Return what a profile depends on besides its ranks and precision."""
    processor, accelerators = probe_processor(), probe_accelerators()
    return {
        **made_with(task),
        "processor": processor["model"],
        "cores": f"{processor['usable_cores']} of {processor['usable_logical_cpus']} threads",
        "accelerators": ", ".join(gpu["name"] or "" for gpu in accelerators["gpus"] if gpu["used"]),
    }


def _place(task: Task, ranks: int, precision: str) -> Path:
    """Return where the profile is cached."""
    return cache_place(_KIND, task, f"{ranks}-ranks", precision)


def _measured(path: Path, task: Task, ranks: int, precision: str) -> Profile:
    sizes = map(str, profiled_microbatches(task))
    arguments = ["--precision", precision, "--steps", f"{_STEPS}", "--microbatches", *sizes]
    answered = answer(task, "profile", path, *arguments, ranks=ranks)
    try:
        return Profile.from_table(answered)
    except ValueError as error:
        expected = f"a profile of {task.trainer}.profile"
        finding = Finding("profile.file", expected, str(error), "correct it", task.name)
        raise UserError(finding, ExitCode.ENVIRONMENT) from error
