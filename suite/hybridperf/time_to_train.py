"""Times to train as pytest benchmarks, with pytest-benchmark's table, JSON and comparisons.

The times are from run_start to run_stop of the harness's log; launching and rescoring are excluded.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from typing import TYPE_CHECKING, Any, Final

import pytest

from hybridperf.errors import ExitCode, UserError
from hybridperf.log import keys
from hybridperf.log.package import read_result
from hybridperf.log.reader import read_log
from hybridperf.plan import ParallelPlan
from hybridperf.report.board import boards
from hybridperf.report.judgement import judged_entries, read_entries
from hybridperf.report.page import build_report
from hybridperf.report.sentences import board_sentence, next_commands
from hybridperf.report.terminal import scores_text
from hybridperf.run.request import RunRequest, check_request, package_of
from hybridperf.run.run_set import make_run_set
from hybridperf.score.metrics import row_of
from hybridperf.score.ranking import with_places
from hybridperf.score.validity import Judgement
from hybridperf.system.describe import describe
from hybridperf.tasks.registry import task_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hybridperf.log.log import Log
    from hybridperf.run.attempt import Sealed
    from hybridperf.run.supervise import RunProgress
    from hybridperf.score.score import ResultScore
    from hybridperf.tasks.task import Task

__all__ = ["BenchmarkPlugin", "TimeToTrain"]


class _TrainingClock:
    """A timer that runs advance by their time to train, for use by pytest-benchmark."""

    __name__ = "time_to_train"

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


_CLOCK: Final = pytest.StashKey[_TrainingClock]()


class BenchmarkPlugin:
    """Prepare the benchmarks of a pytest session, and publish their results."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        named: Path | None = config.getoption("hp_out")
        new = config.rootpath / "runs" / time.strftime("%Y-%m-%d_%H%M%S")
        self._out = (named or new).absolute()

    def prepare(self, item: pytest.Item) -> None:
        """Let pytest-benchmark time ``item`` by a training clock, without a limit on its time."""
        item.stash[_CLOCK] = clock = _TrainingClock()
        item.add_marker(pytest.mark.benchmark(timer=clock, group="time to train"))
        if self._config.pluginmanager.hasplugin("timeout"):
            item.add_marker(pytest.mark.timeout(0))  # the task's own limits bound a run

    def time_to_train(self, benchmark: Any, item: pytest.Item) -> TimeToTrain:
        """Return the value of the fixture ``time_to_train`` for the test ``item``."""
        runs: int | None = self._config.getoption("hp_runs")
        plugins = self._config.pluginmanager
        return TimeToTrain(benchmark, item.stash[_CLOCK], runs, self._out, plugins)

    def pytest_benchmark_update_machine_info(self, machine_info: dict[str, Any]) -> None:
        """Remove the host name from pytest-benchmark's results."""
        machine_info["node"] = ""

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write the report; print scores, what they say, where they are and what to type next."""
        if not self._out.is_dir():
            return
        pages = build_report(self._out, self._out / "report")
        entries = read_entries(self._out)
        leaderboards = boards(entries)
        scores = with_places([entry.official for entry in entries])
        width = max(140, terminalreporter._tw.fullwidth)  # noqa: SLF001 - pytest has no public way to ask
        terminalreporter.section("HybridPerf")
        terminalreporter.write_line(scores_text(scores, width))
        terminalreporter.write_line("")
        for board in leaderboards:
            terminalreporter.write_line(board_sentence(board))
        terminalreporter.write_line("")
        terminalreporter.write_line(f"results:     {self._out}")
        for page in pages:
            if page.name == "index.html":
                terminalreporter.write_line(f"leaderboard: {page.as_uri()}")
                for command in next_commands(leaderboards, page):
                    terminalreporter.write_line(f"next:        {command}")


class TimeToTrain:
    """Train a task under a plan several times, with the times recorded by pytest-benchmark."""

    def __init__(
        self,
        benchmark: Any,
        clock: _TrainingClock,
        runs: int | None,
        out: Path,
        plugins: pytest.PytestPluginManager,
    ) -> None:
        self._benchmark, self._clock = benchmark, clock
        self._runs, self._out, self._plugins = runs, out, plugins

    def __call__(
        self, task: str, *, plan: str = "dp=1", runs: int = 3, **options: Any
    ) -> ResultScore:
        """Make the missing runs of ``task`` under ``plan``; return the score of the result.

        ``--hp-runs`` replaces ``runs``. ``options`` are further fields of
        `hybridperf.run.request.RunRequest`. The test fails if a run misses its target or cannot be
        carried out, or if the result breaks a rule.
        """
        runs = self._runs or runs
        try:
            request = RunRequest(
                task_path(task), ParallelPlan.parse(plan), runs, self._out, **options
            )
            for finding in check_request(request):
                pytest.fail(finding.sentence, pytrace=False)
            package = package_of(request, describe())
            reporter = _LineReporter(self._plugins, f"{task} under {request.plan}")
            earlier = read_result(package).runs if package.folder.is_dir() else ()
            logs = itertools.chain(
                [run.log for run in earlier if run.fact("outcome") == "success"],
                (read_log(sealed.log) for sealed in make_run_set(request, reporter)),
            )
            self._measure(logs, runs)
        except UserError as error:
            if error.exit_code is ExitCode.INTERRUPTED:
                pytest.exit(str(error), returncode=int(pytest.ExitCode.INTERRUPTED))
            pytest.fail(str(error), pytrace=False)
        (entry,) = judged_entries([package])
        score, validity = entry.score, entry.official.validity
        self._benchmark.extra_info.update(row_of(entry.official))
        if missed := [run.number for run in score.runs if run.completion == "missed"]:
            pytest.fail(f"{task} under {plan}: runs {missed} missed the target", pytrace=False)
        if validity.judgement is Judgement.BROKEN:
            pytest.fail(f"{task} under {plan} is broken: {validity.why}", pytrace=False)
        return score

    def _measure(self, logs: Iterator[Log], runs: int) -> None:
        """Let each round of the benchmark last as long as the run of one log."""

        def one_run() -> None:
            for log in logs:
                start, stop = log.first(keys.RUN_START), log.first(keys.RUN_STOP)
                if start and stop and not log.first(keys.ENDING):
                    self._clock.now_s += (stop.time_ms - start.time_ms) / 1000
                    return

        self._benchmark.pedantic(one_run, rounds=runs, iterations=1)
        for _ in logs:  # exhausts the generator, which releases the lock on the folder
            pass


class _LineReporter:
    """Print one line per run to pytest's terminal."""

    def __init__(self, plugins: pytest.PytestPluginManager, what: str) -> None:
        self._reporter = plugins.get_plugin("terminalreporter")
        self._capture = plugins.get_plugin("capturemanager")
        self._what, self._head = what, what

    def begin(self, done: int, wanted: int, task: Task) -> None:  # noqa: ARG002 - the test names it
        self._head = f"{self._what}, run {done + 1} of {wanted}"

    def progress(self, progress: RunProgress) -> None:
        """Ignore progress within a run."""

    def sealed(self, sealed: Sealed) -> None:
        if self._reporter is None or self._reporter.verbosity < 0:
            return
        capture = self._capture
        with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
            self._reporter.ensure_newline()
            self._reporter.write_line(f"  {self._head}: {sealed.story}")
