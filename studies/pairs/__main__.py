"""Projected steps beside measured ones, on two ranks of this machine.

``python -m studies.pairs [TASK...]`` measures profiles of each task and steps under
each plan of ``projection.toml``, in turns, by the same two processes, and prints the table of
``docs/projection.md``. A step is projected from each profile, and the median of these is taken. Two
processes that are started anew are as much as a third faster or slower, so that an error is the
median of three starts. It refuses to begin while others use the processors, and to state figures if
they did so meanwhile.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from hybridperf.cli.printing import print_line
from hybridperf.errors import ExitCode
from hybridperf.plan import ParallelPlan
from hybridperf.projection.profile import Profile
from hybridperf.projection.search import Work
from hybridperf.projection.units import load_units
from hybridperf.system.noise import NoiseMeter
from hybridperf.tasks.registry import find_task
from tests.performance.launch import run_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


ASKED: Final = tomllib.loads(Path(__file__).with_name("pairs.toml").read_text())
_RANKS: Final = 2
_STARTS: Final = 3
_TURNS: Final = 9
_TURNS_OF_PROFILE: Final = 3
_MOST_LOAD: Final = 0.5  # processors that others may use before the start
_MOST_SHARE: Final = 0.05  # of the processors' time that others may use meanwhile


@dataclass(frozen=True)
class Pair:
    """A step under a plan, projected and measured."""

    task: str
    plan: str
    projected_s: float
    measured_s: float

    @property
    def error(self) -> float:
        """Return by what share the projection is too long."""
        return self.projected_s / self.measured_s - 1


def projected_s(plan: str, profile: Profile) -> float:
    """Return the seconds of a step under ``plan`` that are projected from ``profile``."""
    task = find_task(profile.task)
    work = Work.of_task(task, load_units(task.name), profile.times, profile.network())
    return work.project(ParallelPlan.parse(plan)).step_s


def measure(task_name: str, plans: Sequence[str]) -> list[Pair]:
    """Return what is projected and measured of ``task_name``."""
    asked = {
        "task": task_name,
        "plans": plans,
        "turns": _TURNS,
        "turns_of_profile": _TURNS_OF_PROFILE,
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "asked.json"
        file.write_text(json.dumps(asked))
        first, *_ = run_ranks("studies.pairs.worlds", folder, _RANKS, str(file))
    return pairs_of(task_name, plans, first)


def pairs_of(task_name: str, plans: Sequence[str], left: Mapping[str, Any]) -> list[Pair]:
    """Return projected and measured steps from what the first rank ``left``."""
    profiles = [Profile.from_table(each) for each in left["profiles"]]
    return [
        Pair(
            task_name,
            plan,
            statistics.median(projected_s(plan, profile) for profile in profiles),
            statistics.median(left["step_s"][plan]),
        )
        for plan in plans
    ]


def table(starts: Sequence[Sequence[Pair]]) -> str:
    """Return the pairs of all ``starts`` in Markdown, with the median and the worst error.

    Of each pair it is the start with the median error, beside the errors of all.
    """
    lines = [
        "| task | plan | projected, ms | measured, ms | error | of each start |",
        "|---|---|---|---|---|---|",
    ]
    errors = []
    for some in zip(*starts, strict=True):
        ordered = sorted(some, key=lambda pair: pair.error)
        pair = ordered[len(ordered) // 2]
        errors.append(abs(pair.error))
        lines.append(
            f"| {pair.task} | `{pair.plan}` | {pair.projected_s * 1e3:.2f} | "
            f"{pair.measured_s * 1e3:.2f} | {pair.error:+.1%} | "
            f"{', '.join(f'{each.error:+.1%}' for each in ordered)} |"
        )
    summary = f"Error: median {statistics.median(errors):.1%}, worst {max(errors):.1%}"
    return "\n".join([*lines, "", f"{summary} ({len(errors)} pairs, {len(starts)} starts)."])


def main() -> ExitCode:
    """Measure the tasks that the command line names, by default all, and print their table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", default=ASKED["tasks"], metavar="TASK")
    options = parser.parse_args()
    load = psutil.cpu_percent(interval=2) / 100 * (psutil.cpu_count() or 1)
    if load > _MOST_LOAD:
        print_line(f"others keep {load:.1f} processors busy; at most {_MOST_LOAD} may be")
        return ExitCode.ENVIRONMENT
    starts = []
    for _ in range(_STARTS):
        pairs = []
        for task in options.tasks:
            meter = NoiseMeter()
            own = measure(task, ASKED["plans"])
            noise = meter.read()
            if (share := noise.others + noise.steal) > _MOST_SHARE:
                print_line(f"{task}: others used {share:.0%} of the processors' time meanwhile")
                return ExitCode.ENVIRONMENT
            pairs += own
        starts.append(pairs)
    print_line(table(starts))
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
