"""``pytest --benchmark``: times to train as pytest benchmarks.

With pytest-benchmark's table, JSON and comparisons; what they show is time to train, by the
harness's log, not the time that launching and scoring again take.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from suite.logs import keys
from suite.logs.reader import read_log
from suite.refusal import ExitCode, Refusal
from suite.scores.table import score_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from suite.logs.log import Log
    from suite.runs.attempt import Sealed
    from suite.runs.supervise import Progress
    from suite.scores.score import ResultScore
    from suite.tasks.task import Task

__all__ = ["TimeToTrain"]

_FIXTURE: Final = "time_to_train"
_FOLDER: Final = pytest.StashKey[Path]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--benchmark`` and its companions."""
    group = parser.getgroup("hybridperf", "HybridPerf: times to train")
    group.addoption(
        "--benchmark",
        action="store_true",
        help="run the benchmarks that train to a target, and only those",
    )
    group.addoption(
        "--hp-runs", type=int, default=3, metavar="N", help="runs a result (default: %(default)s)"
    )
    group.addoption(
        "--hp-out",
        type=Path,
        metavar="DIR",
        help="folder of results and leaderboard (default: runs/<date and time>)",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep to the benchmarks where they are asked for; skip them, with the reason, elsewhere."""
    benchmarks = [item for item in items if _FIXTURE in getattr(item, "fixturenames", ())]
    if not config.getoption("benchmark"):
        for item in benchmarks:
            item.add_marker(pytest.mark.skip(reason="trains for minutes: run with --benchmark"))
        return
    others = [item for item in items if item not in benchmarks]
    config.hook.pytest_deselected(items=others)
    items[:] = benchmarks
    for item in benchmarks:
        clock = _TrainingClock()
        item.add_marker(pytest.mark.benchmark(timer=clock, group="time to train"))
        item.add_marker(pytest.mark.timeout(0))  # the task's own limits bound a run


def pytest_benchmark_update_machine_info(machine_info: dict[str, Any]) -> None:
    """Keep the host's name out of results."""
    machine_info["node"] = ""


class _TrainingClock:
    """A timer that is moved by runs, so that a benchmark's duration is a time to train."""

    __name__ = "time_to_train"

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class TimeToTrain:
    """Train a task under a plan, as often as asked, and let pytest-benchmark show the times."""

    def __init__(
        self,
        benchmark: Any,
        runs: int,
        out: Path,
        plugins: pytest.PytestPluginManager,
    ) -> None:
        self._benchmark, self._runs, self._out = benchmark, runs, out
        self._plugins = plugins

    def __call__(self, task: str, *, plan: str = "dp=1", **options: Any) -> ResultScore:
        """Return the score of the result for ``task`` under ``plan``, made run by run.

        ``options`` are further fields of `suite.runs.order.Order`. A run that misses its target
        fails the test.
        """
        from suite.logs.package import read_result
        from suite.plan import ParallelPlan
        from suite.runs.order import Order, check_order, package_of
        from suite.runs.series import run_series
        from suite.scores.score import score_result
        from suite.systems.describe import describe
        from suite.tasks.registry import task_path

        try:
            order = Order(
                task_path(task), ParallelPlan.parse(plan), self._runs, self._out, **options
            )
            for finding in check_order(order):
                pytest.fail(finding.sentence, pytrace=False)
            package = package_of(order, describe())
            teller = _Teller(self._plugins, f"{task} under {order.plan}")
            earlier = read_result(package).runs if package.folder.is_dir() else ()
            logs = itertools.chain(
                [run.log for run in earlier if run.fact("outcome") == "success"],
                (read_log(sealed.log) for sealed in run_series(order, teller)),
            )
            self._measure(logs)
        except Refusal as refusal:
            if refusal.exit_code is ExitCode.INTERRUPTED:
                pytest.exit(str(refusal), returncode=int(pytest.ExitCode.INTERRUPTED))
            pytest.fail(str(refusal), pytrace=False)
        score = score_result(read_result(package))
        self._benchmark.extra_info.update(score_row(score))
        if missed := [run.number for run in score.runs if run.completion == "missed"]:
            pytest.fail(f"{task} under {plan}: runs {missed} missed the target", pytrace=False)
        return score

    def _measure(self, logs: Iterator[Log]) -> None:
        """Have each round of the benchmark last as long as one log says that its run took."""
        clock: _TrainingClock = self._benchmark._timer  # noqa: SLF001 - set by the public marker

        def one_run() -> None:
            for log in logs:
                start, stop = log.first(keys.RUN_START), log.first(keys.RUN_STOP)
                if start and stop and not log.first(keys.ENDING):
                    clock.now_s += (stop.time_ms - start.time_ms) / 1000
                    return

        self._benchmark.pedantic(one_run, rounds=self._runs, iterations=1)
        for _ in logs:  # lets the series end, and with it its hold on the folder
            pass


class _Teller:
    """Tell how a series goes, a line a run, beside pytest's own account."""

    def __init__(self, plugins: pytest.PytestPluginManager, what: str) -> None:
        self._reporter = plugins.get_plugin("terminalreporter")
        self._capture = plugins.get_plugin("capturemanager")
        self._what, self._head = what, what

    def begin(self, done: int, wanted: int, task: Task) -> None:  # noqa: ARG002 - the test names it
        self._head = f"{self._what}, run {done + 1} of {wanted}"

    def progress(self, progress: Progress) -> None:
        """Say nothing: a log of pytest's is no place for a bar."""

    def sealed(self, sealed: Sealed) -> None:
        if self._reporter is None or self._reporter.verbosity < 0:
            return
        capture = self._capture
        with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
            self._reporter.ensure_newline()
            self._reporter.write_line(f"  {self._head}: {sealed.story}")


@pytest.fixture
def time_to_train(benchmark: Any, request: pytest.FixtureRequest) -> TimeToTrain:
    """Measure times to train: ``time_to_train("resnet/laptop", plan="dp=2")``."""
    config = request.config
    runs: int = config.getoption("hp_runs")
    return TimeToTrain(benchmark, runs, _out(config), config.pluginmanager)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Publish what was measured, and say where."""
    out = config.stash.get(_FOLDER, None)
    if out is None or not out.is_dir():
        return
    from suite.logs.package import find_results, read_result
    from suite.report.build import build_report
    from suite.report.terminal import scores_text
    from suite.scores.score import score_result

    pages = build_report(out, out / "report")
    scores = [score_result(read_result(package)) for package in find_results(out)]
    terminalreporter.section("HybridPerf")
    terminalreporter.write_line(scores_text(scores, max(140, terminalreporter._tw.fullwidth)))  # noqa: SLF001 - pytest has no public way to ask
    terminalreporter.write_line(f"results:     {out}")
    for page in pages:
        if page.name == "index.html":
            terminalreporter.write_line(f"leaderboard: {page.as_uri()}")


def _out(config: pytest.Config) -> Path:
    """Return the session's folder of results; a new one unless the user names one."""
    if _FOLDER not in config.stash:
        named: Path | None = config.getoption("hp_out")
        new = config.rootpath / "runs" / time.strftime("%Y-%m-%d_%H%M%S")
        config.stash[_FOLDER] = (named or new).absolute()
    return config.stash[_FOLDER]
