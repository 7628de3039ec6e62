"""Profiles of tasks on this machine: measured by the trainer's ranks, and cached."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding
from hybridperf.projection.profile import Profile
from hybridperf.run import child, local_ranks
from hybridperf.run.atomic import canonical_json, write_atomically
from hybridperf.run.provenance import code_hashes
from hybridperf.system.accelerators import probe_accelerators
from hybridperf.system.cpu import probe_processor
from hybridperf.tasks.registry import read_task
from hybridperf.untrusted import read_object, reason

if TYPE_CHECKING:
    from hybridperf.tasks.task import Task

__all__ = ["cache_folder", "cached_profile", "measure_profile", "profiled_microbatches"]

_SIZES: Final = 5
_LARGEST: Final = 64  #: samples of a micro-batch that is measured; larger ones are extrapolated
_LAST_LINES: Final = 3  #: of what ranks print that fail
_MOST_TEXT: Final = 600  #: characters of them


def measure_profile(path: Path, ranks: int, precision: str = "fp32") -> Profile:
    """Return the profile of the task at ``path`` with ``ranks`` on this machine, cached.

    It is measured, which takes seconds to minutes, unless the cache has one of the same task,
    machine, PyTorch and code.

    Raises:
        UserError: exit status 4 if ranks fail, or leave no valid profile.
    """
    task = read_task(path)
    if found := cached_profile(task, ranks, precision):
        return found
    profile = dataclasses.replace(
        _measured(path, task, ranks, precision), made_with=_made_with(task)
    )
    place = _place(task, ranks, precision)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, canonical_json(profile.as_table()))
    except OSError as error:
        remedy = "set XDG_CACHE_HOME to a folder that can be written"
        found_reason = reason(error)
        finding = Finding(
            "profile.cache", "a profile to be stored", found_reason, remedy, str(place)
        )
        raise UserError(finding, ExitCode.ENVIRONMENT) from error
    return profile


def cached_profile(task: Task, ranks: int, precision: str = "fp32") -> Profile | None:
    """Return the cached profile of ``task``; None if there is none that holds here and now."""
    try:
        profile = Profile.from_table(read_object(_place(task, ranks, precision)))
    except (OSError, ValueError):
        return None  # also one of an earlier version: it is measured anew
    holds = (profile.task, profile.ranks, profile.precision) == (task.name, ranks, precision)
    return profile if holds and profile.made_with == _made_with(task) else None


def cache_folder() -> Path:
    """Return the user's folder for caches of this program (XDG base directory specification)."""
    stated = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    # The specification has relative paths ignored.
    base = stated if stated.is_absolute() else Path("~/.cache").expanduser()
    return base / "hybridperf"


def profiled_microbatches(task: Task) -> list[int]:
    """Return the micro-batches to measure: one sample, and halves of the largest."""
    largest = min(_LARGEST, task.training.global_batch_size)
    return sorted({1, *(max(1, largest >> power) for power in range(_SIZES - 1))})


def _made_with(task: Task) -> dict[str, str]:
    """Return what a profile depends on besides its ranks and precision."""
    processor, accelerators = probe_processor(), probe_accelerators()
    return {
        "task_sha256": task.sha256,
        "processor": processor["model"],
        "cores": f"{processor['usable_cores']} of {processor['usable_logical_cpus']} threads",
        "accelerators": ", ".join(gpu["name"] or "" for gpu in accelerators["gpus"] if gpu["used"]),
        "torch": importlib.metadata.version("torch"),
        **{name: str(value) for name, value in code_hashes(task.trainer).items()},
    }


def _place(task: Task, ranks: int, precision: str) -> Path:
    """Return where the profile is cached; the name of a user's task may be any text."""
    name = re.sub(r"[^a-z0-9]+", "-", task.name.lower())[:40].strip("-")
    mark = hashlib.sha256(task.name.encode(errors="backslashreplace")).hexdigest()[:8]
    return cache_folder() / "profiles" / f"{name}-{mark}-{ranks}-ranks-{precision}.json"


def _measured(path: Path, task: Task, ranks: int, precision: str) -> Profile:
    sizes = map(str, profiled_microbatches(task))
    module = f"{task.trainer}.profile"
    threads = max(1, probe_processor()["usable_cores"] // ranks)
    environment = {
        "OMP_NUM_THREADS": str(threads),
        "GLOO_SOCKET_IFNAME": "lo",
        **os.environ,
        child.PARENT_VARIABLE: str(os.getpid()),
    }
    with tempfile.TemporaryDirectory(prefix="hybridperf_profile_") as folder:
        out = Path(folder) / "profile.json"
        arguments = [str(path.absolute()), str(out), "--precision", precision]
        arguments += ["--microbatches", *sizes]
        if ranks == 1:
            environment |= local_ranks.rank_environment(0, 1, port=0)
            command = [module, *arguments]
        else:
            command = [local_ranks.__name__, str(ranks), task.trainer, module, *arguments]
        done = subprocess.run(
            [sys.executable, "-m", child.__name__, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
            check=False,
        )
        expected = f"{module} to measure {ranks} ranks here"
        if done.returncode:
            lines = done.stderr.decode(errors="backslashreplace").strip().splitlines()
            found = " ".join(lines[-_LAST_LINES:])[-_MOST_TEXT:] or f"status {done.returncode}"
            finding = Finding("profile.ranks", expected, found, "correct the cause", task.name)
            raise UserError(finding, ExitCode.ENVIRONMENT)
        try:
            return Profile.from_table(read_object(out))
        except (OSError, ValueError) as error:
            finding = Finding("profile.file", expected, reason(error), "correct it", task.name)
            raise UserError(finding, ExitCode.ENVIRONMENT) from error
