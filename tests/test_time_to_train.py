"""What ``pytest --benchmark`` requests, prints and compares, without training."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf import time_to_train as module
from hybridperf.errors import UserError
from hybridperf.plan import ParallelPlan
from hybridperf.report.judgement import judged_entries
from hybridperf.run.supervise import RunProgress
from hybridperf.tasks.registry import read_task, task_path
from hybridperf.time_to_train import BenchmarkPlugin, TimeToTrain, TrainedScore
from tests.docs.conftest import blocks
from tests.packages import write_result

if TYPE_CHECKING:
    from hybridperf.run.request import RunRequest

MY_MODEL = Path(__file__).parents[1] / "docs/examples/my_model/task.toml"
OPTIONS = {
    "hp_out": None,
    "hp_runs": None,
    "hp_task": None,
    "hp_plan": None,
    "hp_set": (),
    "hp_baseline": None,
    "hp_fail_if_slower": None,
    "collectonly": False,
}


def _plugin(root: Path, **options: Any) -> BenchmarkPlugin:
    """Return the plugin of a session in ``root`` with these options of the command line."""
    config: Any = SimpleNamespace(
        rootpath=root,
        getoption=(OPTIONS | options).__getitem__,
        pluginmanager=SimpleNamespace(get_plugin=lambda _: None),
    )
    return BenchmarkPlugin(config)


def _request(plugin: BenchmarkPlugin, task: object, **how: Any) -> RunRequest:
    plan, runs, overrides = how.pop("plan", "dp=1"), how.pop("runs", 3), how.pop("set", {})
    return plugin.request(task, plan, runs, overrides, how)  # type: ignore[arg-type]  # wrong ones too


@pytest.mark.parametrize("task", [str(MY_MODEL), MY_MODEL])
def test_a_task_file_of_ones_own_is_given_by_its_path(tmp_path: Path, task: str | Path) -> None:
    request = _request(_plugin(tmp_path), task, plan="dp=2", set={"optimizer.lr": 0.05})

    assert request.task().name == "mixer/digits"
    assert request.plan == ParallelPlan(dp=2)
    assert request.task().optimizer.lr == 0.05
    assert request.runs == 3


def test_a_relative_path_starts_here_or_at_the_root_folder_of_pytest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, here = tmp_path / "root", tmp_path / "here"
    for folder in (root, here):
        folder.mkdir()
        (folder / f"{folder.name}.toml").write_bytes(MY_MODEL.read_bytes())
    monkeypatch.chdir(here)

    for name in ("root.toml", "here.toml"):
        assert _request(_plugin(root), name).task().name == "mixer/digits"


def test_the_command_line_replaces_what_tests_name(tmp_path: Path) -> None:
    given = {"hp_task": str(MY_MODEL), "hp_plan": "pp=2", "hp_set": ["optimizer.lr=0.25"]}
    plugin = _plugin(tmp_path, **given, hp_runs=7)

    for task in ("resnet/laptop", None):
        changed = {"optimizer.lr": 0.05, "training.global_batch_size": 16}
        request = _request(plugin, task, plan="dp=2", runs=2, set=changed)
        assert request.task().name == "mixer/digits"
        assert request.plan == ParallelPlan.parse("pp=2")
        assert request.runs == 7
        assert request.task().optimizer.lr == 0.25
        assert request.task().training.global_batch_size == 16


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        ({"task": None}, "expected a task, by its name or the path of its file, found None; name"),
        ({"task": 3}, "found 3; name one, as in time_to_train('resnet/laptop') or with --hp-task"),
        ({"task": "resnet/lptop"}, "did you mean resnet/laptop"),
        ({"task": "none.toml"}, "No such file"),
        ({"lr": 3}, "found 'lr'; write set={'optimizer.lr': 3}."),
        ({"divison": "open"}, "found 'divison'; did you mean division?"),
        ({"division": "opne"}, "expected division to be closed or open, found 'opne'"),
        ({"plan": 3}, "found '3'"),
        ({"runs": "3"}, "expected runs to be a whole number from 1, found '3'"),
        ({"set": "optimizer.lr=3"}, "expected set to be a dictionary, found 'optimizer.lr=3'"),
        ({"set": {"optimizer.rl": 3}}, "expected a hyperparameter of resnet/laptop"),
        ({"set": {"optimizer.lr": "fast"}}, "expected a value of type float"),
        ({"set": {"optimizer.lr": {1}}}, "expected a value of type float"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_one_sentence(
    tmp_path: Path, call: dict[str, Any], sentence: str
) -> None:
    benchmark = SimpleNamespace(extra_info={})
    plugins: Any = SimpleNamespace(get_plugin=lambda _: None)
    fixture = TimeToTrain(_plugin(tmp_path), benchmark, module._TrainingClock(), plugins)

    with pytest.raises(pytest.fail.Exception) as failed:
        fixture(**({"task": "resnet/laptop"} | call))

    assert sentence in str(failed.value)
    assert "\n" not in str(failed.value)
    assert fixture.refused


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"hp_task": "resnet"}, "expected the name of a task"),
        ({"hp_plan": "dp"}, "'dp'"),
        ({"hp_fail_if_slower": "3%"}, "expected --hp-baseline with --hp-fail-if-slower"),
        ({"hp_fail_if_slower": "3", "hp_baseline": Path()}, "write it as 3%"),
        ({"hp_baseline": Path("none")}, "expected results of earlier runs, found none"),
        ({"hp_baseline": Path("out"), "hp_out": Path("out")}, "found one in --hp-baseline and"),
    ],
    ids=str,
)
def test_a_wrong_option_is_refused_before_anything_starts(
    tmp_path: Path, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=re.escape(sentence)):
        _plugin(tmp_path, **options)


def test_the_documented_limit_on_the_mean_works_with_one_run(tmp_path: Path) -> None:
    (example,) = blocks("commands", "python")
    (entry,) = judged_entries([write_result(tmp_path, times_s=[10.0])])
    assert entry.score.olympic_mean_s is None
    calls = []

    def fixture(*task: str, **how: object) -> TrainedScore:
        calls.append((task, how))
        return TrainedScore.of(entry.score)

    names: dict[str, Any] = {}
    exec(example, names)
    names["test_mine"](fixture)

    assert calls == [(("my_model/task.toml",), {"plan": "dp=2", "set": {"optimizer.lr": 0.05}})]
    assert TrainedScore.of(entry.score).mean_s == pytest.approx(10.0)


def _compared(root: Path, factor: float, **options: Any) -> tuple[BenchmarkPlugin, dict[str, Any]]:
    times_s = [10.0, 10.1, 10.2, 10.3, 10.4]
    write_result(root / "base", times_s=times_s)
    package = write_result(root / "new", times_s=[factor * each for each in times_s])
    plugin = _plugin(root, hp_baseline=root / "base", **options)
    return plugin, plugin.compare(*judged_entries([package]))


def test_a_result_slower_than_its_baseline_fails_the_test(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"dp=2: slower by more than 3 %: 1\.200 "):
        _compared(tmp_path, 1.2, hp_fail_if_slower="3%")


@pytest.mark.parametrize(
    ("factor", "limit", "outcome"),
    [(1.0, "3%", "not slower"), (1.025, "3%", "undecided"), (1.2, None, "slower")],
)
def test_what_is_not_slower_or_undecided_is_said_and_does_not_fail(
    tmp_path: Path, factor: float, limit: str | None, outcome: str
) -> None:
    plugin, decision = _compared(tmp_path, factor, hp_fail_if_slower=limit)

    assert decision["outcome"] == outcome
    assert plugin._compared == [f"resnet/laptop under dp=2: {decision['sentence']}"]


def test_a_result_without_a_baseline_is_said_and_does_not_fail(tmp_path: Path) -> None:
    write_result(tmp_path / "base", plan="dp=1")
    package = write_result(tmp_path / "new", plan="dp=2")
    plugin = _plugin(tmp_path, hp_baseline=tmp_path / "base", hp_fail_if_slower="3%")

    assert plugin.compare(*judged_entries([package]))["outcome"] == "not compared"
    assert "not compared: " in plugin._compared[0]
    assert "expected one result of resnet/laptop under dp=2, found none" in plugin._compared[0]


class _Terminal:
    """A terminal reporter of pytest that keeps its lines."""

    def __init__(self, verbosity: int) -> None:
        self.verbosity, self.lines, self.flushed = verbosity, list[str](), 0

    def ensure_newline(self) -> None: ...

    def write_line(self, line: str) -> None:
        self.lines.append(line)

    def flush(self) -> None:
        self.flushed = len(self.lines)


@pytest.mark.parametrize("verbosity", [0, -1, -2])
def test_a_run_prints_its_start_and_a_line_every_so_often(
    monkeypatch: pytest.MonkeyPatch, verbosity: int
) -> None:
    terminal, now_s = _Terminal(verbosity), [100.0]
    plugins: Any = SimpleNamespace(get_plugin={"terminalreporter": terminal}.get)
    clock = SimpleNamespace(monotonic=lambda: now_s[0])
    monkeypatch.setattr(module, "time", clock)
    reporter = module._LineReporter(plugins, "mine under dp=1")

    reporter.begin(1, 3, read_task(task_path("resnet/laptop")))
    for second in range(1, 601):
        now_s[0] += 1
        running, batches = second > 15, second - 15
        quality = 0.5 if second > 100 else None
        elapsed_s = float(batches if running else second)
        trained = "" if quality is None else "epoch 2"
        reporter.progress(RunProgress(running, elapsed_s, max(0, batches), trained, quality))

    if verbosity < -1:
        assert terminal.lines == []
        return
    head = "  mine under dp=1, run 2 of 3: "
    assert terminal.lines[0] == f"{head}starts"
    assert terminal.lines[1] == f"{head}initialising for 10 s (not timed)"
    assert terminal.lines[2].startswith(f"{head}5 s on the clock, about ")
    assert "50.00% after epoch 2" in terminal.lines[-1]
    assert 20 < len(terminal.lines) < 40
    assert terminal.flushed == len(terminal.lines), "a pipe shows them at once"


SOURCE = """
from pathlib import Path

HERE = Path(__file__).parent

def test_by_name(time_to_train):
    score = time_to_train("resnet/laptop", plan="dp=2")
    assert score.mean_s < 60

def test_by_path(time_to_train):
    time_to_train(HERE / "task.toml", set={"optimizer.lr": 0.05}, trainer="hybridperf_reference")

def test_by_parameters(time_to_train, task, plan):
    time_to_train(task=task, plan=plan)

def test_wrong(time_to_train):
    time_to_train("resnet/laptop", plan="pp=99")

def test_late(time_to_train, tmp_path):
    time_to_train(tmp_path / "task.toml")

def test_without_a_call(time_to_train):
    helper(time_to_train)
"""


def test_collect_only_prints_task_plan_runs_and_projected_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "test_mine.py"
    path.write_text(SOURCE)
    (tmp_path / "task.toml").write_bytes(MY_MODEL.read_bytes())
    names: dict[str, Any] = {"__file__": str(path)}
    exec(compile(SOURCE, path, "exec"), names)  # as pytest imports it
    monkeypatch.setattr(module, "project_run", lambda request: {"step_s": 0.01} if request else {})
    params = SimpleNamespace(params={"task": "resnet/laptop", "plan": "dp=1"})
    items: Any = [
        SimpleNamespace(nodeid=name, obj=names[name], callspec=params)
        for name in names
        if name.startswith("test_")
    ]
    plugin = _plugin(tmp_path, collectonly=True)

    lines = plugin.pytest_report_collectionfinish(items)

    by_name, by_path, by_parameters, wrong, late, without = lines
    alone, projected = "resnet/laptop under dp=1", r"3 runs, projected [\d.]+ (s|min) a run"
    assert re.fullmatch(rf"test_by_name: resnet/laptop under dp=2, {projected}", by_name)
    assert "test_by_path: mixer/digits under dp=1, 3 runs, projected at most" in by_path
    assert re.fullmatch(rf"test_by_parameters: {alone}, {projected}", by_parameters)
    assert "expected" in wrong
    assert late == "test_late: task and plan are known when the test runs"
    assert without == "test_without_a_call: task and plan are known when the test runs"
    assert _plugin(tmp_path).pytest_report_collectionfinish(items) == []
