"""Times to train as pytest benchmarks, with pytest-benchmark's table, JSON and comparisons.

The times are from run_start to run_stop of the harness's log; launching and rescoring are excluded.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import itertools
import json
import os
import textwrap
import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, Self, get_args

import pytest

from hybridperf.cli.progress import expected_batches
from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import visible
from hybridperf.log import keys
from hybridperf.log.package import read_result
from hybridperf.log.reader import read_log
from hybridperf.plan import ParallelPlan
from hybridperf.projection.project import duration
from hybridperf.regression import Baseline, parse_percentage
from hybridperf.report.board import boards
from hybridperf.report.judgement import judged_entries, read_entries
from hybridperf.report.page import build_report
from hybridperf.report.sentences import board_sentence, next_commands
from hybridperf.report.terminal import scores_text
from hybridperf.run.projection import is_projectable, project_run
from hybridperf.run.request import RunRequest, package_of, require_valid
from hybridperf.run.run_set import make_run_set
from hybridperf.run.spec import Mode
from hybridperf.score.metrics import row_of
from hybridperf.score.ranking import with_places
from hybridperf.score.score import ResultScore
from hybridperf.score.validity import Judgement
from hybridperf.spelling import did_you_mean
from hybridperf.system.describe import describe
from hybridperf.tasks.overrides import hyperparameters, parse_overrides
from hybridperf.tasks.registry import in_suite, read_task, resolve_task
from hybridperf.tasks.task import Division

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hybridperf.log.log import Log
    from hybridperf.report.judgement import JudgedResult
    from hybridperf.run.attempt import Sealed
    from hybridperf.run.supervise import RunProgress
    from hybridperf.tasks.task import Task

__all__ = ["BenchmarkPlugin", "TimeToTrain", "TrainedScore"]

#: keywords of a call besides task, plan, runs and set -> accepted values; empty: any
_KEYWORDS: Final[dict[str, tuple[str, ...]]] = {
    "trainer": (),
    "division": get_args(Division),
    "org": (),
    "system": (),
    "mode": get_args(Mode),
    "keep_weights": (),
    "publish_errors": (),
}
_DEFAULT_PLAN: Final = "dp=1"
_DEFAULT_RUNS: Final = 3
_FIRST_LINE_S: Final = 10.0  #: from the start of a run to the first line on its progress
_GROWTH: Final = 0.1  #: from one such line to the next, as a share of the time so far


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedScore(ResultScore):
    """The score of a result whose completed runs reached the target; there is at least one."""

    mean_s: float  #: mean time to train over all completed runs

    @classmethod
    def of(cls, score: ResultScore) -> Self:
        """Return ``score`` with the mean over its completed runs."""
        fields = {each.name: getattr(score, each.name) for each in dataclasses.fields(score)}
        fields["mean_s"] = fmean(run.time_to_train_s for run in score.completed)
        return cls(**fields)


class _TrainingClock:
    """A timer that runs advance by their time to train, for use by pytest-benchmark."""

    __name__ = "time_to_train"

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


_CLOCK: Final = pytest.StashKey[_TrainingClock]()


class BenchmarkPlugin:
    """Prepare the benchmarks of a pytest session, and publish their results.

    Raises:
        UserError: if an option of the command line names no task, plan, percentage or baseline.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        named: Path | None = config.getoption("hp_out")
        new = config.rootpath / "runs" / time.strftime("%Y-%m-%d_%H%M%S")
        self._out = (named or new).absolute()
        task, plan = config.getoption("hp_task"), config.getoption("hp_plan")
        self._task = None if task is None else self._task_file(task)
        self._plan = None if plan is None else ParallelPlan.parse(plan)
        folder, limit = config.getoption("hp_baseline"), config.getoption("hp_fail_if_slower")
        self._limit = None if limit is None else parse_percentage(limit)
        if self._limit is not None and folder is None:
            raise _refuse("--hp-baseline with --hp-fail-if-slower", "none", "name its folder")
        if folder is not None and folder.absolute() == self._out:
            raise _refuse("two folders", "one in --hp-baseline and --hp-out", "name another")
        self._baseline = None if folder is None else Baseline(folder)
        self._compared: list[str] = []

    def prepare(self, item: pytest.Item) -> None:
        """Let pytest-benchmark time ``item`` by a training clock, without a limit on its time."""
        item.stash[_CLOCK] = clock = _TrainingClock()
        item.add_marker(pytest.mark.benchmark(timer=clock, group="time to train"))
        if self._config.pluginmanager.hasplugin("timeout"):
            item.add_marker(pytest.mark.timeout(0))  # the task's own limits bound a run

    def time_to_train(self, benchmark: Any, item: pytest.Item) -> TimeToTrain:
        """Return the value of the fixture ``time_to_train`` for the test ``item``."""
        return TimeToTrain(self, benchmark, item.stash[_CLOCK], self._config.pluginmanager)

    def request(
        self,
        task: str | Path | None,
        plan: str | ParallelPlan,
        runs: int,
        overrides: object,
        options: Mapping[str, Any],
    ) -> RunRequest:
        """Return the request of a call, with what the command line replaces.

        Raises:
            UserError: exit status 2 if an argument is wrong.
        """
        if not isinstance(runs, int) or runs < 1:
            raise _refuse("runs to be a whole number from 1", f"{runs!r:.80}", "correct it")
        path = self._task or self._task_file(task)
        known = read_task(path)
        for word, value in options.items():
            if word not in _KEYWORDS:
                raise _refuse_keyword(word, value, known)
            if (accepted := _KEYWORDS[word]) and value not in accepted:
                raise _refuse(f"{word} to be {' or '.join(accepted)}", repr(value), "choose one")
        if not isinstance(overrides, Mapping):
            remedy = "write set={'optimizer.lr': 0.05}"
            raise _refuse("set to be a dictionary", f"{overrides!r:.80}", remedy)
        texts = [f"{key}={json.dumps(value, default=str)}" for key, value in overrides.items()]
        changed = parse_overrides(known, [*texts, *self._config.getoption("hp_set")])
        return RunRequest(
            task_path=path,
            plan=self._plan or ParallelPlan.parse(str(plan)),
            runs=self._config.getoption("hp_runs") or runs,
            out=self._out,
            overrides=tuple(changed.items()),
            **options,
        )

    def compare(self, result: JudgedResult) -> dict[str, object]:
        """Compare ``result`` with the baseline, if there is one; return the decision as JSON.

        The test fails if the result is slower than ``--hp-fail-if-slower`` allows.
        """
        if self._baseline is None:
            return {}
        name = f"{result.benchmark} under {result.score.plan}"
        try:
            regression = self._baseline.compared_with(result, self._limit or 0.0)
        except UserError as error:
            self._compared.append(f"{name}: not compared: {error}")
            return {"outcome": "not compared", "sentence": str(error)}
        self._compared.append(f"{name}: {regression.sentence}")
        if self._limit is not None and regression.outcome == "slower":
            pytest.fail(self._compared[-1], pytrace=False)
        return regression.as_json()

    def pytest_report_header(self) -> str:
        """State where results go, and that runs do not overlap."""
        return f"hybridperf: one run after the other; results in {self._out}"

    def pytest_report_collectionfinish(self, items: list[pytest.Item]) -> list[str]:
        """State task, plan, runs and projected time of each benchmark with ``--collect-only``."""
        if not self._config.getoption("collectonly"):
            return []
        return [f"{item.nodeid}: {self._outlook(item)}" for item in items]

    def pytest_benchmark_update_machine_info(self, machine_info: dict[str, Any]) -> None:
        """Remove the host name from pytest-benchmark's results."""
        machine_info["node"] = ""

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write the report; print scores, what they say, where they are and what to type next."""
        if not self._out.is_dir() or self._config.getoption("collectonly"):
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
        for line in self._compared:
            terminalreporter.write_line(line)
        terminalreporter.write_line("")
        terminalreporter.write_line(f"results:     {self._out}")
        for page in pages:
            if page.name == "index.html":
                terminalreporter.write_line(f"leaderboard: {page.as_uri()}")
                for command in next_commands(leaderboards, page):
                    terminalreporter.write_line(f"next:        {command}")

    def _task_file(self, task: str | Path | None) -> Path:
        """Return the file of a task that a name or a path gives.

        A relative path starts at the current folder, or else at pytest's root folder.
        """
        if not isinstance(task, str | os.PathLike):
            remedy = "name one, as in time_to_train('resnet/laptop') or with --hp-task"
            raise _refuse("a task, by its name or the path of its file", f"{task!r:.80}", remedy)
        path = resolve_task(os.fspath(task))
        return path if path.exists() else self._config.rootpath / path

    def _outlook(self, item: pytest.Item) -> str:
        """Return task, plan, runs and projected time of a benchmark as a clause."""
        if (call := _call_in_source(item)) is None:
            return "task and plan are known when the test runs"
        try:
            request = self.request(
                call.pop("task", None),
                call.pop("plan", _DEFAULT_PLAN),
                call.pop("runs", _DEFAULT_RUNS),
                call.pop("set", None) or {},
                call,
            )
            require_valid(request)
            projected = _projected(request)
        except UserError as error:
            return str(error)
        runs = f"{request.runs} run{'s' if request.runs > 1 else ''}"
        return f"{request.task().name} under {request.plan}, {runs}, {projected}"


class TimeToTrain:
    """Train a task under a plan several times, with the times recorded by pytest-benchmark."""

    def __init__(
        self,
        plugin: BenchmarkPlugin,
        benchmark: Any,
        clock: _TrainingClock,
        plugins: pytest.PytestPluginManager,
    ) -> None:
        self._plugin, self._benchmark, self._clock = plugin, benchmark, clock
        self._plugins = plugins
        self.refused = False  #: whether a call failed before its first run

    def __call__(
        self,
        task: str | Path | None = None,
        *,
        plan: str | ParallelPlan = _DEFAULT_PLAN,
        runs: int = _DEFAULT_RUNS,
        set: Mapping[str, object] | None = None,  # noqa: A002 - the command line's --set
        **options: Any,
    ) -> TrainedScore:
        """Make the missing runs of ``task`` under ``plan``; return the score of the result.

        ``task`` is a name or the path of a task file, ``set`` has hyperparameters by dotted key;
        ``--hp-task``, ``--hp-plan``, ``--hp-runs`` and ``--hp-set`` replace what is given.
        ``options`` are further fields of `hybridperf.run.request.RunRequest`: trainer, division,
        org, system, mode, keep_weights and publish_errors. The test fails if an argument is wrong,
        a run misses its target or cannot be carried out, the result breaks a rule, or it is slower
        than the baseline of the command line allows.
        """
        self.refused = True
        try:
            request = self._plugin.request(task, plan, runs, set or {}, options)
            require_valid(request)
            name = f"{request.task().name} under {request.plan}"
            package = package_of(request, describe())
            reporter = _LineReporter(self._plugins, name)
            earlier = read_result(package).runs if package.folder.is_dir() else ()
            logs = itertools.chain(
                [run.log for run in earlier if run.fact("outcome") == "success"],
                (read_log(sealed.log) for sealed in make_run_set(request, reporter)),
            )
            self._measure(logs, request.runs)
        except UserError as error:
            if error.exit_code is ExitCode.INTERRUPTED:
                pytest.exit(str(error), returncode=int(pytest.ExitCode.INTERRUPTED))
            raise pytest.fail.Exception(str(error), pytrace=False) from None  # says it once
        (entry,) = judged_entries([package])
        score, validity = entry.score, entry.official.validity
        self._benchmark.extra_info.update(row_of(entry.official))
        if missed := [run.number for run in score.runs if run.completion == "missed"]:
            pytest.fail(f"{name}: runs {missed} missed the target", pytrace=False)
        if validity.judgement is Judgement.BROKEN:
            pytest.fail(f"{name} is broken: {validity.why}", pytrace=False)
        self._benchmark.extra_info.update(baseline=self._plugin.compare(entry))
        return TrainedScore.of(score)

    def _measure(self, logs: Iterator[Log], runs: int) -> None:
        """Let each round of the benchmark last as long as the run of one log."""

        def one_run() -> None:
            for log in logs:
                start, stop = log.first(keys.RUN_START), log.first(keys.RUN_STOP)
                if start and stop and not log.first(keys.ENDING):
                    self._clock.now_s += (stop.time_ms - start.time_ms) / 1000
                    return

        self.refused = False
        self._benchmark.pedantic(one_run, rounds=runs, iterations=1)
        for _ in logs:  # exhausts the generator, which releases the lock on the folder
            pass


class _LineReporter:
    """Print the start, the progress and the end of each run in lines of pytest's terminal."""

    def __init__(self, plugins: pytest.PytestPluginManager, name: str) -> None:
        self._reporter = plugins.get_plugin("terminalreporter")
        self._capture = plugins.get_plugin("capturemanager")
        self._name, self._head, self._batches, self._left = name, name, 0, ""
        self._began_s = self._due_s = 0.0

    def begin(self, done: int, wanted: int, task: Task) -> None:
        self._head = f"{self._name}, run {done + 1} of {wanted}"
        self._batches = expected_batches(task)
        self._left = "about" if task.reference else "at most"
        self._began_s = time.monotonic()
        self._due_s = self._began_s + _FIRST_LINE_S
        self._print("starts")

    def segment(self, attempt: int, story: str) -> None:
        self._print(f"attempt {attempt}: {story}")

    def progress(self, progress: RunProgress) -> None:
        """Print a line if it is due."""
        now_s = time.monotonic()
        if now_s < self._due_s:
            return
        self._due_s = now_s + max(_FIRST_LINE_S, _GROWTH * (now_s - self._began_s))
        if not progress.running:
            self._print(f"initialising for {duration(progress.elapsed_s)} (not timed)")
            return
        text = f"{duration(progress.elapsed_s)} on the clock"
        if progress.quality is not None:
            text += f", {progress.quality:.2%} after {progress.trained}"
        if 0 < progress.batches < self._batches:
            left_s = progress.elapsed_s * (self._batches / progress.batches - 1)
            text += f", {self._left} {duration(left_s)} left"
        self._print(text)

    def sealed(self, sealed: Sealed) -> None:
        self._print(sealed.story)

    def _print(self, text: str) -> None:
        if self._reporter is None or self._reporter.verbosity < -1:
            return
        capture = self._capture
        with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
            self._reporter.ensure_newline()
            self._reporter.write_line(f"  {self._head}: {text}")
            self._reporter.flush()  # a pipe would hold the lines until the end


def _call_in_source(item: pytest.Item) -> dict[str, Any] | None:
    """Return the arguments of the call of the fixture in the source of the test ``item``.

    Keywords that need the test's own variables are left out. Returns None if there is no call, or
    its task or plan need such variables.
    """
    function = getattr(item, "obj", None)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))  # type: ignore[arg-type]  # None: TypeError
    except (OSError, TypeError, SyntaxError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "time_to_train":
            break
    else:
        return None
    callspec = getattr(item, "callspec", None)
    names = getattr(function, "__globals__", {}) | (callspec.params if callspec else {})
    written = {each.arg: each.value for each in node.keywords if each.arg}
    written |= dict(zip(("task",), node.args, strict=False))
    found = {}
    for word, expression in written.items():
        try:
            code = compile(ast.Expression(expression), "<benchmark>", "eval")
            found[word] = eval(code, dict(names))  # noqa: S307 - of a test that pytest imported
        except Exception:  # whatever the expression raises
            if word in {"task", "plan"}:
                return None
    return found


def _projected(request: RunRequest) -> str:
    """Return the projected time of a run of ``request`` as a clause."""
    task = request.task()
    if step_s := project_run(request).get("step_s"):
        assert isinstance(step_s, float)
        bound = "" if task.reference else "at most "
        return f"projected {bound}{duration(step_s * expected_batches(task))} a run"
    if not is_projectable(request):
        return f"not projected: {request.launched} has no modules units and profile"
    name = task.name if in_suite(request.task_path) else str(request.task_path)
    command = f"hybridperf plan {name} --devices {request.plan.ranks}"
    return f"not projected: '{command}' measures this machine for that, once"


def _refuse_keyword(word: str, value: object, task: Task) -> UserError:
    """Return the error for a keyword that no call has."""
    every = ("task", "plan", "runs", "set", *_KEYWORDS)
    keys_of_it = [key for key in hyperparameters(task) if word in {key, key.partition(".")[2]}]
    remedy = did_you_mean(word, every, "hyperparameters are given in set")
    if keys_of_it:
        remedy = f"write set={{{keys_of_it[0]!r}: {value!r:.80}}}"
    return _refuse(f"the keywords {', '.join(every)}", f"{word!r:.80}", remedy)


def _refuse(expected: str, found: str, remedy: str) -> UserError:
    return UserError.of("time_to_train.call", expected, visible(found), remedy)
