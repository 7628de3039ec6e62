"""Unit tables and profiles of tasks: measured by the task's trainer on this machine, and cached.

The trainer has a module for each, which runs in a process of its own in the sandbox of a run. It
may read the task's data there, since no clock runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.errors import ExitCode, UserError, missing_package
from hybridperf.log.writer import LogClock
from hybridperf.plan import ParallelPlan
from hybridperf.projection.profile import Profile
from hybridperf.projection.units import UnitTable, load_units
from hybridperf.run import child
from hybridperf.run.files import Scratch, canonical_json, write_atomically
from hybridperf.run.launcher import child_environment, python_command, rank_command
from hybridperf.run.provenance import code_hashes, has_module
from hybridperf.run.sandbox import sandbox_facts
from hybridperf.run.spec import RunSpec
from hybridperf.system.accelerators import probe_accelerators
from hybridperf.system.host import probe_processor
from hybridperf.system.noise import BUSY_SHARE, NoiseMeter
from hybridperf.system.software import torch_folder
from hybridperf.tasks.registry import in_suite, read_task
from hybridperf.untrusted import read_object, reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from hybridperf.tasks.task import Task

__all__ = [
    "ask_trainer",
    "cache_folder",
    "cached_profile",
    "cached_units",
    "measure_profile",
    "profiled_microbatches",
    "units_of",
]

_UNITS: Final = "units"  #: the trainer's module that counts units
_PROFILE: Final = "profile"  #: the trainer's module that measures a profile
_SIZES: Final = 5
_LARGEST: Final = 64  #: samples of the largest micro-batch to measure; larger ones are extrapolated
_STEPS: Final = 25  #: steps of each micro-batch
_ATTEMPTS: Final = 3
_LAST_LINES: Final = 3  #: lines of a failed process's output to show
_MOST_TEXT: Final = 600  #: characters of such output to show
_EXCEPTION: Final = re.compile(r"[\w.]*(?:Error|Exception)\b")  #: begins a traceback's last line


def units_of(path: Path, say: Callable[[str], None] = lambda _: None) -> UnitTable:
    """Return the unit table of the task at ``path``.

    The trainer of a user's own task counts it, which takes seconds, unless the cache has the table
    of the same task, PyTorch and code. ``say`` is told of it in a line.

    Raises:
        UserError: exit status 4 if the trainer cannot count the units.
    """
    if table := cached_units(path):
        return table
    task = read_task(path)
    say(f"{task.name}: counting the work of its units, once, for seconds")
    answer = ask_trainer(task, _UNITS, path)
    try:
        table = _unit_table(answer, task)
    except ValueError as error:
        raise _refusal(
            task, "units.table", f"a unit table of {task.trainer}.{_UNITS}", error
        ) from error
    _write_cache(
        _cache_path(_UNITS, task), {"made_with": _code_of(task), "table": table.as_table()}
    )
    return table


def cached_units(path: Path) -> UnitTable | None:
    """Return the unit table of the task at ``path``; None if no one has counted it yet."""
    task = read_task(path)
    if in_suite(path):
        return load_units(task.name)
    try:
        entry = read_object(_cache_path(_UNITS, task))
        return _unit_table(entry["table"], task) if entry["made_with"] == _code_of(task) else None
    except (OSError, LookupError, ValueError, ModuleNotFoundError, UserError):
        return None


def _unit_table(table: object, task: Task) -> UnitTable:
    """Return the unit table that JSON states as ``table``.

    Raises:
        ValueError: if it is not a table of the units of ``task``; the text says why.
    """
    units = UnitTable.from_table(table)
    names = tuple(unit.name for unit in units.units)
    if names != task.units:
        raise ValueError(f"the units {names!r:.80} of a task with {task.units!r:.80}")
    return units


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

    It is measured, which takes seconds to minutes, unless the cache has the profile of the same
    task, machine, PyTorch and code; with ``remeasure`` in any case. Where other processes use the
    processors meanwhile, it is measured again, a few times. A profile that they have slowed is
    returned with ``busy_too`` only, and never cached. ``say`` is told of each stage in a line.

    Raises:
        UserError: exit status 4 if the trainer has no module for it, or ranks fail or leave no
            valid profile, or other processes use the processors.
    """
    task = read_task(path)
    if not remeasure and (profile := cached_profile(task, ranks, precision)):
        return profile
    for attempt in range(1, _ATTEMPTS + 1):
        again = f", attempt {attempt} of {_ATTEMPTS}" if attempt > 1 else ""
        say(f"{task.name}: measuring units and links on {ranks} ranks, for up to minutes{again}")
        meter = NoiseMeter()
        profile = _measure(path, task, ranks, precision)
        noise = meter.read()
        share = noise.others + noise.steal
        if share <= BUSY_SHARE:
            profile = dataclasses.replace(profile, made_with=_machine_and_code_of(task))
            _write_cache(_profile_path(task, ranks, precision), profile.as_table())
            return profile
        say(f"{task.name}: other processes used {share:.0%} of the processors meanwhile")
        if busy_too:
            return profile
    raise UserError.of(
        "profile.busy",
        f"other processes to use at most {BUSY_SHARE:.0%} of the processors while units are "
        "measured",
        f"{share:.0%} in the last of {_ATTEMPTS} attempts",
        "end them, or name a plan or a --system; hybridperf plan --busy uses such a profile",
        path=task.name,
        exit_code=ExitCode.ENVIRONMENT,
    )


def cached_profile(task: Task, ranks: int, precision: str = "fp32") -> Profile | None:
    """Return the cached profile of ``task``; None if none is valid for this machine and code."""
    try:
        profile = Profile.from_table(read_object(_profile_path(task, ranks, precision)))
    except (OSError, ValueError):
        return None  # also a profile of an earlier version: it is measured again
    same = (profile.task, profile.ranks, profile.precision) == (task.name, ranks, precision)
    return profile if same and profile.made_with == _machine_and_code_of(task) else None


def profiled_microbatches(task: Task) -> list[int]:
    """Return the micro-batches to measure: one sample, and halves of the largest."""
    largest = min(_LARGEST, task.training.global_batch_size)
    return sorted({1, *(max(1, largest >> power) for power in range(_SIZES - 1))})


def _measure(path: Path, task: Task, ranks: int, precision: str) -> Profile:
    sizes = map(str, profiled_microbatches(task))
    arguments = ["--precision", precision, "--steps", f"{_STEPS}", "--microbatches", *sizes]
    answer = ask_trainer(task, _PROFILE, path, *arguments, ranks=ranks)
    try:
        return Profile.from_table(answer)
    except ValueError as error:
        raise _refusal(
            task, "profile.file", f"a profile of {task.trainer}.{_PROFILE}", error
        ) from error


def ask_trainer(
    task: Task,
    module: str,
    path: Path,
    *arguments: str,
    ranks: int = 1,
    readable: Iterable[Path] = (),
    writable: Iterable[Path] = (),
) -> dict[str, object]:
    """Run ``module`` of the task's trainer with ``path``, the file of ``task``; return its answer.

    It runs on ``ranks`` ranks of this machine, and writes a JSON object to the file that is its
    second argument. In the sandbox it may also read ``readable`` and write ``writable``.

    Raises:
        UserError: exit status 4 if there is no PyTorch or no such module, or if it fails.
    """
    name = f"{task.trainer}.{module}"
    if torch_folder() is None:
        raise missing_package("torch")
    if not has_module(task.trainer, module):
        remedy = f"write {module}.py in the task's trainer, as docs/your_model.md says"
        raise UserError.of(
            f"trainer.{module}",
            f"the module {name}",
            "none",
            remedy,
            path=task.name,
            exit_code=ExitCode.ENVIRONMENT,
        )
    with contextlib.closing(Scratch()) as temporary:
        scratch = temporary.path / "scratch"
        scratch.mkdir()
        out = scratch / "answer.json"
        spec = _sandbox_spec(task, path, temporary.path / module)
        command = rank_command(
            spec.trainer, [name, str(path.absolute()), str(out), *arguments], ranks
        )
        done = subprocess.run(
            python_command(spec, child.__name__, *command.module),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=child_environment(
                spec,
                command,
                ranks,
                scratch,
                readable=[each.resolve() for each in readable],
                writable=[each.resolve() for each in writable],
            ),
            cwd=scratch if spec.sandboxed else None,
            check=False,
        )
        expected = f"an answer of {name}"
        if done.returncode:
            cause = _cause(done.stderr.decode(errors="backslashreplace"))
            cause = cause or f"status {done.returncode}"
            raise _refusal(task, f"trainer.{module}", expected, cause, "correct the cause")
        try:
            return read_object(out)
        except (OSError, ValueError) as error:
            raise _refusal(
                task, f"trainer.{module}", expected, reason(error), "correct the cause"
            ) from error


def _sandbox_spec(task: Task, path: Path, folder: Path) -> RunSpec:
    """Return a run in ``folder`` that is never made, in whose sandbox the trainer answers."""
    return RunSpec(
        folder=str(folder),
        attempt=0,
        task_path=str(path.absolute()),
        trainer=task.trainer,
        overrides={},
        plan=str(ParallelPlan()),
        seed=0,
        org="",
        platform="",
        division="open",
        clock=LogClock(),
        mode="open",
        sandbox=sandbox_facts("sandboxed", 1),
    )


def _cause(output: str) -> str:
    """Return the last exception in the ``output`` of a process, else its last lines."""
    lines = output.strip().splitlines()  # libraries may add lines as they are unloaded
    errors = [line for line in lines if _EXCEPTION.match(line)]
    return " ".join(errors[-1:] or lines[-_LAST_LINES:])[-_MOST_TEXT:].rstrip(".")


def _refusal(
    task: Task, rule: str, expected: str, found: object, remedy: str = "correct it"
) -> UserError:
    environment = ExitCode.ENVIRONMENT
    return UserError.of(rule, expected, str(found), remedy, path=task.name, exit_code=environment)


def _code_of(task: Task) -> dict[str, str]:
    """Return the facts on which every answer about ``task`` depends: task, PyTorch and code.

    Raises:
        UserError: exit status 4 if PyTorch is not installed.
    """
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise missing_package("torch") from None
    hashes = {name: str(value) for name, value in code_hashes(task.trainer).items()}
    return {"task_sha256": task.sha256, "torch": torch, **hashes}


def _machine_and_code_of(task: Task) -> dict[str, str]:
    """Return the facts on which a profile depends, besides its ranks and precision."""
    processor, accelerators = probe_processor(), probe_accelerators()
    return {
        **_code_of(task),
        "processor": processor["model"],
        "cores": f"{processor['usable_cores']} of {processor['usable_logical_cpus']} threads",
        "accelerators": ", ".join(gpu["name"] or "" for gpu in accelerators["gpus"] if gpu["used"]),
    }


def cache_folder() -> Path:
    """Return the user's folder for caches of this program (XDG base directory specification)."""
    named = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    # The specification has relative paths ignored.
    base = named if named.is_absolute() else Path("~/.cache").expanduser()
    return base / "hybridperf"


def _profile_path(task: Task, ranks: int, precision: str) -> Path:
    return _cache_path("profiles", task, f"{ranks}-ranks", precision)


def _cache_path(kind: str, task: Task, *marks: str) -> Path:
    """Return the file of the cache for ``kind``; the name of a user's task may be any text."""
    name = re.sub(r"[^a-z0-9]+", "-", task.name.lower())[:40].strip("-")
    digest = hashlib.sha256(task.name.encode(errors="backslashreplace")).hexdigest()[:8]
    return cache_folder() / kind / f"{'-'.join((name, digest, *marks))}.json"


def _write_cache(path: Path, table: Mapping[str, object]) -> None:
    """Write ``table`` to ``path``.

    Raises:
        UserError: exit status 4 if it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, canonical_json(table))
    except OSError as error:
        raise UserError.of(
            "trainer.cache",
            "a file to be written",
            reason(error),
            "set XDG_CACHE_HOME to a folder that can be written",
            path=str(path),
            exit_code=ExitCode.ENVIRONMENT,
        ) from error
