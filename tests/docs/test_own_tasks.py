"""Results of a user's own task: judged by the file beside them, and by no other."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from suite.plan import ParallelPlan
from suite.refusal import ExitCode
from suite.rules.check import check_path
from suite.runs.order import Order, check_order
from suite.tasks.registry import task_path
from tests.docs.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.docs.conftest import Walk

pytestmark = pytest.mark.timeout(600)  # the first test waits for runs

OWN = ROOT / "docs/examples/my_model/task.toml"


def _lower_the_target(path: Path) -> None:
    path.write_text(path.read_text().replace("target = 0.95", "target = 0.05"))


def _rename(path: Path) -> None:
    path.write_text(path.read_text().replace("two_layers/digits", "three_layers/digits"))


def _never_evaluate(path: Path) -> None:
    path.write_text(path.read_text().replace("every_epochs = 1", "every_epochs = 0"))


def _link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


@pytest.mark.parametrize(
    ("change", "rules"),
    [
        (lambda path: path.unlink(), {"run.benchmark", "package.sums"}),
        (_rename, {"run.benchmark", "package.sums"}),
        (
            _lower_the_target,
            {"run.task", "run.target", "run.manifest", "package.sums"},
        ),
        (_never_evaluate, {"result.task", "run.benchmark", "package.sums"}),
        (lambda path: path.write_bytes(b"\xff"), {"result.task", "run.benchmark", "package.sums"}),
        (
            lambda path: path.write_text("a = " + "[" * 9999),
            {"result.task", "run.benchmark", "package.sums"},
        ),
        (
            lambda path: path.write_bytes(b"#" * 2**19),
            {"result.task", "run.benchmark", "package.sums"},
        ),
        (
            _link,
            {
                "result.task",
                "run.benchmark",
                "package.kind",
                "package.stray",
                "package.sums",
            },
        ),
    ],
)
def test_another_file_is_found_to_be_another(
    framework_walk: Walk, tmp_path: Path, change: Callable[[Path], None], rules: set[str]
) -> None:
    folder = shutil.copytree(framework_walk.runs / "local", tmp_path / "local")
    (task,) = folder.rglob("task.toml")
    change(task)

    assert {finding.rule for finding in check_path(tmp_path).findings} == rules


def test_one_log_is_judged_by_the_file_beside_it(framework_walk: Walk, tmp_path: Path) -> None:
    log = next(framework_walk.runs.rglob("result_0.txt"))
    alone = tmp_path / "result_0.txt"
    shutil.copy(log, alone)

    assert check_path(log).findings == ()
    (finding,) = check_path(alone).findings
    assert finding.rule == "run.benchmark"
    assert "put back what the harness wrote, task.toml" in finding.sentence


def test_an_edited_task_does_not_join_a_result(framework_walk: Walk, tmp_path: Path) -> None:
    task = tmp_path / "task.toml"
    shutil.copy(framework_walk.examples / "numpy_trainer/task.toml", task)
    _lower_the_target(task)

    done = framework_walk.say("run", task, "--runs", "4")

    assert done.returncode == ExitCode.USAGE
    assert "as in the runs already in this folder" in done.stderr
    assert check_path(framework_walk.runs).findings == ()


def test_the_name_of_a_task_of_the_suite_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(task_path("resnet/laptop").read_text().replace("0.98", "0.50"))

    (finding,) = check_order(Order(path, ParallelPlan(), 1, tmp_path))
    assert finding.rule == "order.task"
    assert finding.path == str(path)


def test_the_command_of_a_result_names_the_file(tmp_path: Path) -> None:
    order = Order(OWN, ParallelPlan(dp=2), 3, tmp_path, trainer="my_model")

    assert order.command == f"hybridperf run {OWN} --plan dp=2 --runs 3 --trainer my_model"
