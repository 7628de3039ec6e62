"""docs/your_model.md: what the page shows is what happens."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
import torch

from hybridperf.errors import UserError
from hybridperf.plan import ParallelPlan
from hybridperf.rules.check import check_path
from hybridperf.run.request import RunRequest, check_request
from hybridperf.tasks.registry import read_task, task_path
from hybridperf_reference.models import chain_of
from tests.docs.conftest import EXAMPLES, assert_code_is_of, plans

if TYPE_CHECKING:
    from pathlib import Path

    from tests.docs.conftest import Walk


def test_the_code_on_the_page_is_that_of_its_example() -> None:
    assert_code_is_of("my_model", "your_model")


def test_a_model_trains_under_every_plan_of_its_page(model_walk: Walk) -> None:
    assert model_walk.done.returncode == 0, model_walk.done.stderr
    manifests = model_walk.manifests()

    (plan,) = plans(model_walk.script)
    assert [manifest["plan"] for manifest in manifests] == [str(ParallelPlan.parse(plan))]
    assert {manifest["outcome"] for manifest in manifests} == {"success"}
    assert "1 of 3" in model_walk.done.stdout


def test_its_runs_keep_every_rule_but_their_number(model_walk: Walk) -> None:
    findings = check_path(model_walk.runs).findings

    results = len(model_walk.manifests())
    assert [finding.rule for finding in findings] == ["result.run_count"] * results


def test_the_task_of_the_example_stands_beside_its_results(model_walk: Walk) -> None:
    model_walk.assert_task_beside_results("my_model")


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


def test_the_name_of_a_task_of_the_suite_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(task_path("resnet/laptop").read_text().replace("0.98", "0.50"))

    (finding,) = check_request(RunRequest(path, ParallelPlan(), 1, tmp_path))
    assert finding.rule == "request.task"
    assert finding.path == str(path)


def test_the_command_of_a_result_names_the_file(tmp_path: Path) -> None:
    own = EXAMPLES / "my_model/task.toml"
    order = RunRequest(own, ParallelPlan(dp=2), 3, tmp_path, trainer="my_model")

    assert order.command == f"hybridperf run {own} --plan dp=2 --runs 3 --trainer my_model"


def test_the_table_of_what_the_closed_division_lets_change_is_required(tmp_path: Path) -> None:
    own, path = (EXAMPLES / "my_model/task.toml").read_text(), tmp_path / "mine.toml"
    fixed = own[: own.index("[closed.")]

    path.write_text(fixed)
    with pytest.raises(UserError, match="expected a value at 'closed', found none"):
        read_task(path)
    path.write_text(f"{fixed}[closed]\n")
    assert read_task(path).closed == {}


def test_plans_that_delay_or_compress_belong_to_the_open_division(tmp_path: Path) -> None:
    own = EXAMPLES / "my_model/task.toml"
    for plan in ("dp=2,staleness=1", "dp=2,gradients=powersgd"):
        request = RunRequest(own, ParallelPlan.parse(plan), 1, tmp_path, trainer="my_model")
        rules = {finding.rule: finding for finding in check_request(request)}
        assert "--division open" in rules["division.plan"].remedy
        request = dataclasses.replace(request, division="open")
        assert "division.plan" not in {finding.rule for finding in check_request(request)}
