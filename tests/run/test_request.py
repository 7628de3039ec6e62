"""What is refused before anything starts."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.plan import ParallelPlan
from hybridperf.run.nodes import Nodes
from hybridperf.run.request import RunRequest, check_request
from hybridperf.system.accelerators import Devices
from hybridperf.tasks.registry import task_path
from tests.run.conftest import FAULTY

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("what", ["org", "system"])
@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "../a", "-a", "a b", "a\n", "x" * 65, "\u202e"]
)
def test_names_that_are_no_folder_names_are_refused(tmp_path: Path, what: str, name: str) -> None:
    request = RunRequest(task_path("resnet/laptop"), ParallelPlan(), 1, tmp_path, trainer=FAULTY)
    changes: dict[str, Any] = {what: name}
    (finding,) = check_request(dataclasses.replace(request, **changes))
    assert finding.rule == f"request.{what}"


@pytest.mark.parametrize(
    ("task", "plan", "rules"),
    [
        ("vit/laptop", "tp=2", []),
        ("vit/laptop", "tp=2,sp=on", []),
        ("vit/laptop", "tp=3", ["plan.tp", "plan.tp"]),
        ("bert/laptop", "tp=2,sp=on", []),
        ("bert/laptop", "dp=2,zero=1", []),
        ("bert/laptop", "dp=2,bn=sync", ["plan.bn"]),
        ("vgg/laptop", "tp=4", []),
        ("vgg/laptop", "tp=2,sp=on", ["plan.sp"]),
        ("resnet/laptop", "dp=2,bn=sync", []),
        ("resnet/laptop", "tp=2", ["plan.tp"]),
        ("resnet/laptop", "dp=2,zero=1,offload=cpu", ["plan.offload"]),
    ],
)
def test_a_plan_is_held_to_what_the_task_declares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, plan: str, rules: list[str]
) -> None:
    monkeypatch.setattr("hybridperf.run.request.usable_devices", lambda: Devices("cpu", 4, ""))
    request = RunRequest(task_path(task), ParallelPlan.parse(plan), 1, tmp_path, trainer=FAULTY)

    assert [finding.rule for finding in check_request(request)] == rules


@pytest.mark.parametrize("plan", ["dp=2,gradients=bf16", "pp=2,links=int8"])
def test_a_plan_that_computes_something_else_asks_for_the_open_division(
    tmp_path: Path, plan: str
) -> None:
    request = RunRequest(
        task_path("resnet/laptop"), ParallelPlan.parse(plan), 1, tmp_path, trainer=FAULTY
    )
    (finding,) = check_request(request)

    assert finding.rule == "division.plan"
    assert finding.sentence.endswith(
        f"found {plan.split(',')[1]}; drop it, or enter the open division with --division open."
    )
    assert check_request(dataclasses.replace(request, division="open")) == []


@pytest.mark.parametrize(
    ("compiler", "rules"), [("g++", []), ("no-such-compiler", ["plan.compile"])]
)
def test_compilation_needs_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str, rules: list[str]
) -> None:
    (tmp_path / "g++").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setattr("hybridperf.run.request.usable_devices", lambda: Devices("cpu", 4, ""))
    plan = ParallelPlan.parse("compile=on")
    request = RunRequest(task_path("resnet/laptop"), plan, 1, tmp_path, trainer=FAULTY)

    assert [finding.rule for finding in check_request(request)] == rules


@pytest.mark.parametrize(
    ("plan", "nodes", "rules"),
    [
        ("dp=16", 4, []),
        ("dp=16", 3, ["plan.ranks", "request.nodes"]),
        ("dp=16", 2, ["plan.ranks"]),
        ("dp=8", 2, []),
    ],
)
def test_a_plan_is_held_to_the_devices_of_all_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: str, nodes: int, rules: list[str]
) -> None:
    monkeypatch.setattr("hybridperf.run.request.usable_devices", lambda: Devices("gpu", 4, "H200"))
    request = RunRequest(
        task_path("resnet/laptop"), ParallelPlan.parse(plan), 1, tmp_path, trainer=FAULTY
    )
    request = dataclasses.replace(request, nodes=Nodes(nodes))

    assert sorted(finding.rule for finding in check_request(request)) == rules


@pytest.mark.parametrize(
    "name", ["no_such", "tests", "tests.no_such", "os", "../tests", "tests..trainers", ".", "numpy"]
)
def test_what_is_no_trainer_is_refused(tmp_path: Path, name: str) -> None:
    request = RunRequest(task_path("resnet/laptop"), ParallelPlan(), 1, tmp_path, trainer=name)
    assert [finding.rule for finding in check_request(request)] == ["request.trainer"]
