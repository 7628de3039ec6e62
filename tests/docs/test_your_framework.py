"""docs/your_framework.md: what the page shows happens; a task of one's own judges its results."""

from __future__ import annotations

import ast
import json
import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from hybridperf.errors import ExitCode
from hybridperf.rules.check import check_path
from tests.docs.conftest import EXAMPLES, ROOT, assert_code_is_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.docs.conftest import Walk


def test_the_code_on_the_page_is_that_of_its_example() -> None:
    assert_code_is_of("numpy_trainer", "your_framework")


def test_another_framework_makes_a_valid_result(framework_walk: Walk) -> None:
    done = framework_walk.done
    assert done.returncode == 0, done.stderr
    manifests = framework_walk.manifests()

    assert [manifest["outcome"] for manifest in manifests] == ["success"] * 3
    assert all(each["rescoring"]["quality"] >= each["task"]["target"] for each in manifests)
    assert check_path(framework_walk.runs).findings == ()
    assert "valid by hybridperf-1.0, 3 logs checked" in done.stdout
    assert "3 of 3" in done.stdout


def test_the_task_of_the_example_stands_beside_its_results(framework_walk: Walk) -> None:
    framework_walk.assert_task_beside_results("numpy_trainer")


def test_its_time_is_that_of_its_own_log(framework_walk: Walk) -> None:
    (row, *_) = json.loads(framework_walk.say("score", "runs", "--json").stdout)

    assert row["benchmark"] == "two_layers/digits"
    manifest = framework_walk.manifests()[0]
    task, data = manifest["task"]["sha256"], manifest["data_sha256"]
    assert row["version"] == f"1-{task[:12]}-{data[:12]}"
    assert row["mean_s"] > 0
    assert row["samples_to_target"] >= 1184


def test_it_uses_nothing_of_ours_and_no_torch() -> None:
    used = set()
    for path in (EXAMPLES / "numpy_trainer").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                used |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                used.add(node.module.partition(".")[0])

    others = {"numpy", "numpy_trainer", "safetensors", "sklearn"}
    assert used - set(sys.stdlib_module_names) == others


def _keys(log: Path) -> set[str]:
    lines = log.read_text().splitlines()
    return {json.loads(line.removeprefix(":::MLLOG "))["key"] for line in lines}


def test_the_page_names_every_key_that_it_writes(framework_walk: Walk) -> None:
    page = (ROOT / "docs/your_framework.md").read_text()
    script = (EXAMPLES / "numpy_trainer/train.py").read_text()
    log = next(framework_walk.runs.rglob("result_0.txt"))

    written = {key for key in _keys(log) if f'"{key}"' in script and not key.startswith("hyb")}
    assert written >= {"init_stop", "run_start", "eval_accuracy", "run_stop"}
    assert [key for key in written - {"seed"} if f"`{key}`" not in page] == []


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
    assert "restore what the harness wrote, task.toml" in finding.sentence


def test_an_edited_task_does_not_join_a_result(framework_walk: Walk, tmp_path: Path) -> None:
    task = tmp_path / "task.toml"
    shutil.copy(framework_walk.examples / "numpy_trainer/task.toml", task)
    _lower_the_target(task)

    done = framework_walk.say("run", task, "--runs", "4")

    assert done.returncode == ExitCode.USAGE
    assert "as in the runs already in this folder" in done.stderr
    assert check_path(framework_walk.runs).findings == ()
