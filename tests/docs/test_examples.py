"""The pages for those who bring a model or a framework: what they show is what happens."""

from __future__ import annotations

import ast
import json
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

from reference_impls.models import chain_of
from suite.plan import ParallelPlan
from suite.rules.check import check_path
from suite.runs.provenance import file_sha256
from suite.tasks.task import read_task
from tests.docs.conftest import ROOT, blocks

if TYPE_CHECKING:
    from pathlib import Path

    from tests.docs.conftest import Walk

pytestmark = pytest.mark.timeout(600)  # several runs of several processes each

EXAMPLES = ROOT / "docs/examples"
PAGES = {"your_model": "my_model", "your_framework": "numpy_trainer"}


def _manifests(walk: Walk) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(walk.runs.rglob("result_*.json"))]


def _keys(log: Path) -> set[str]:
    lines = log.read_text().splitlines()
    return {json.loads(line.removeprefix(":::MLLOG "))["key"] for line in lines}


@pytest.mark.parametrize("page", PAGES)
def test_the_code_on_a_page_is_that_of_its_example(page: str) -> None:
    files = [path.read_text() for path in (EXAMPLES / PAGES[page]).iterdir() if path.is_file()]
    shown = [code for language in ("python", "toml") for code in blocks(page, language)]

    assert shown
    assert [code for code in shown if not any(code in text for text in files)] == []


def test_a_model_trains_under_every_plan_of_its_page(model_walk: Walk) -> None:
    assert model_walk.done.returncode == 0, model_walk.done.stderr
    manifests = _manifests(model_walk)

    plans = re.findall(r"--plan (\S+)", "".join(blocks("your_model", "sh")))
    assert {manifest["plan"] for manifest in manifests} == {
        str(ParallelPlan.parse(plan)) for plan in plans
    }
    assert {manifest["outcome"] for manifest in manifests} == {"success"}
    assert "1 of 3" in model_walk.done.stdout


def test_its_runs_keep_every_rule_but_their_number(model_walk: Walk) -> None:
    findings = check_path(model_walk.runs).findings

    results = len(_manifests(model_walk))
    assert [finding.rule for finding in findings] == ["result.run_count"] * results


def test_its_chain_computes_what_the_model_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    from my_model.chain import mixer_chain
    from my_model.mixer import Mixer

    task = read_task(EXAMPLES / "my_model/task.toml")
    chain = chain_of(task, 3, mixer_chain)
    torch.manual_seed(3)
    numbers: dict[str, Any] = task.model
    model = Mixer(**numbers)
    images, _ = chain.example(4)

    outputs = images
    for unit in chain.units:
        outputs = unit.module(outputs)
    assert torch.equal(outputs, model(images))
    assert chain.parameter_names() == [name for name, _ in model.named_parameters()]


def test_another_framework_makes_a_valid_result(framework_walk: Walk) -> None:
    done = framework_walk.done
    assert done.returncode == 0, done.stderr
    manifests = _manifests(framework_walk)

    assert [manifest["outcome"] for manifest in manifests] == ["success"] * 3
    assert all(each["rescoring"]["quality"] >= each["task"]["target"] for each in manifests)
    assert check_path(framework_walk.runs).findings == ()
    assert "valid by hybridperf-1.0, 3 logs checked" in done.stdout
    assert "3 of 3" in done.stdout


def test_its_time_is_that_of_its_own_log(framework_walk: Walk) -> None:
    (row, *_) = json.loads(framework_walk.say("score", "runs", "--json").stdout)

    assert row["benchmark"] == "two_layers/digits"
    manifest = _manifests(framework_walk)[0]
    task, data = manifest["task"]["sha256"], manifest["data_sha256"]
    assert row["version"] == f"1-{task[:12]}-{data[:12]}"
    assert 0 < row["olympic_mean_s"] < 60
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


def test_the_page_names_every_key_that_it_writes(framework_walk: Walk) -> None:
    page = (ROOT / "docs/your_framework.md").read_text()
    script = (EXAMPLES / "numpy_trainer/train.py").read_text()
    log = next(framework_walk.runs.rglob("result_0.txt"))

    written = {key for key in _keys(log) if f'"{key}"' in script and not key.startswith("hyb")}
    assert written >= {"init_stop", "run_start", "eval_accuracy", "run_stop"}
    assert [key for key in written - {"seed"} if f"`{key}`" not in page] == []


@pytest.mark.parametrize("package", PAGES.values())
def test_the_task_of_an_example_stands_beside_its_results(
    package: str, model_walk: Walk, framework_walk: Walk
) -> None:
    walk = model_walk if package == "my_model" else framework_walk
    own = EXAMPLES / package / "task.toml"

    copies = list(walk.runs.rglob("task.toml"))
    assert {path.read_bytes() for path in copies} == {own.read_bytes()}
    for path in copies:
        assert f"{file_sha256(own)}  task.toml" in (path.parent / "SHA256SUMS").read_text()
