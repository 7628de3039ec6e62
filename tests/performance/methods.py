"""Train tasks under the methods of ``methods.toml``, and tabulate how they converge.

    python -m tests.performance.methods run --out methods --runs 10
    python -m tests.performance.methods table --out methods

The first command makes the missing runs of an open-division submission, by ``hybridperf run``, and
can be given again after an interruption. The second one prints the table of ``docs/methods.md``.
"""

from __future__ import annotations

import argparse
import math
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Final

from hybridperf.cli.printing import print_line
from hybridperf.errors import ExitCode
from hybridperf.log.package import find_results, read_result
from hybridperf.score.interval import olympic_interval
from hybridperf.score.olympic import fewest_runs, olympic_mean
from hybridperf.score.score import score_result
from hybridperf.score.welch import ratio_interval
from hybridperf.system.describe import describe
from hybridperf.system.name import entry_name, system_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hybridperf.score.interval import Interval
    from hybridperf.score.score import ResultScore

__all__ = ["METHODS", "Method", "commands", "table"]

TASKS: Final = ("resnet/laptop", "vgg/laptop", "vit/laptop", "bert/laptop")


@dataclass(frozen=True)
class Method:
    """A way to train: a plan, and overrides by task."""

    key: str
    name: str
    plan: str
    set: dict[str, list[str]] = field(default_factory=dict)

    def trains(self, task: str) -> bool:
        """Tell whether ``task`` is trained by it."""
        return not self.set or task in self.set


METHODS: Final = tuple(
    Method(**each)
    for each in tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["methods"]
)


def commands(
    tasks: Sequence[str], methods: Sequence[Method], *, runs: int, out: Path, org: str
) -> Iterator[list[str]]:
    """Yield the arguments of each command: first for one run of each result, then for the second.

    So a machine that slows down does so for all methods.
    """
    machine = system_name(describe())
    for count in range(1, runs + 1):
        for task in tasks:
            for method in (each for each in methods if each.trains(task)):
                words = ["run", task, "--plan", method.plan, "--division", "open"]
                words += ["--runs", str(count), "--out", str(out), "--org", org]
                words += ["--system", entry_name(machine, method.key)]
                for override in method.set.get(task, []):
                    words += ["--set", override]
                yield words


def table(root: Path, methods: Sequence[Method] = METHODS) -> str:
    """Return the open results at or below ``root`` as a table in Markdown, by task and method.

    Raises:
        ValueError: if one is of no method, and would be left out.
    """
    every = [score_result(read_result(package)) for package in find_results(root)]
    scores = [score for score in every if score.division == "open"]
    endings = tuple(f"-{method.key}" for method in methods)
    if others := [score.system for score in scores if not score.system.endswith(endings)]:
        raise ValueError(f"results of no method: {', '.join(others)}")
    head = ("task", "method", "samples to target", "of the first method's", "time to target, s")
    rows = [(*head, "missed")]
    for task in sorted({score.benchmark for score in scores}):
        of_task = [
            (method, score)
            for method in methods
            for score in scores
            if score.benchmark == task and score.system.endswith(f"-{method.key}")
        ]
        first = [score for method, score in of_task if method == methods[0]]
        for method, score in of_task:
            missed = sum(run.completion == "missed" for run in score.completed)
            overrides = ", ".join(method.set.get(task, []))
            rows.append(
                (
                    task,
                    f"{method.name} (`{score.plan}`{f', {overrides}' if overrides else ''})",
                    _mean(_samples(score), score.drops, 0),
                    "" if method == methods[0] else _ratio(first, score),
                    _mean([run.time_to_train_s for run in score.completed], score.drops, 1),
                    f"{missed} of {len(score.completed)}",
                )
            )
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def _samples(score: ResultScore) -> list[float]:
    """Return the samples to the target of each completed run, infinite for those that missed."""
    return [
        float(run.samples_to_target) if run.completion == "reached" else math.inf
        for run in score.completed
    ]


def _mean(values: Sequence[float], drops: int, digits: int) -> str:
    """Return the olympic mean of ``values`` with its 95 % interval, or why there is none.

    Where too many are infinite, the plain mean of the others.
    """
    if len(values) < fewest_runs(drops):
        return "too few runs"
    mean = olympic_mean(values, drops)
    if math.isfinite(mean):
        return f"{mean:,.{digits}f} {_span(olympic_interval(values, drops), digits)}"
    reached = [value for value in values if math.isfinite(value)]
    if len(reached) < fewest_runs(0) + 1:
        return "none"
    span = _span(olympic_interval(reached, 0), digits)
    return f"none; where reached {fmean(reached):,.{digits}f} {span}"


def _ratio(first: Sequence[ResultScore], score: ResultScore) -> str:
    """Return the mean of runs that reached the target over that of the first method's."""
    if len(first) != 1:
        return "unknown"
    one, other = ([each for each in _samples(s) if each < math.inf] for s in (first[0], score))
    if not one or not other:
        return "unknown"
    ratio = fmean(other) / fmean(one)
    return f"{ratio:.2f} {_span(ratio_interval(one, other), 2)}"


def _span(interval: Interval | None, digits: int) -> str:
    if interval is None:
        return "(no interval)"
    high = "no bound" if math.isinf(interval.high) else f"{interval.high:,.{digits}f}"
    return f"({interval.low:,.{digits}f} to {high})"


def _run(options: argparse.Namespace) -> int:
    methods = [each for each in METHODS if not options.methods or each.key in options.methods]
    worst = ExitCode.OK
    for words in commands(
        options.tasks, methods, runs=options.runs, out=options.out, org=options.org
    ):
        print_line(shlex.join(["hybridperf", *words]))
        sys.stdout.flush()  # before what the command prints
        status = ExitCode(subprocess.call([Path(sys.executable).with_name("hybridperf"), *words]))
        # Misses are findings, not failures: of one run, or of so many that the result is invalid.
        if status not in {ExitCode.OK, ExitCode.MISSED, ExitCode.INVALID}:
            return status
        worst = max(worst, status)
    return worst


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("run", "table"))
    parser.add_argument("--out", type=Path, default=Path("methods"), help="the submission's folder")
    parser.add_argument("--org", default="hybridperf", help="organisation of the results")
    parser.add_argument("--runs", type=int, default=10, help="runs of each result")
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--methods", nargs="+", choices=[each.key for each in METHODS])
    options = parser.parse_args()
    if options.action == "run":
        return _run(options)
    print_line(table(options.out))
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(_main())
