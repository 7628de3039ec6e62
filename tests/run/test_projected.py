"""What is projected before a run, from what is known of this machine, and the log's line of it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.cli.commands import run as command
from hybridperf.log import keys
from hybridperf.log.package import Package
from hybridperf.log.reader import read_log
from hybridperf.log.writer import LogClock
from hybridperf.plan import ParallelPlan
from hybridperf.run.attempt import write_head
from hybridperf.run.nodes import Nodes
from hybridperf.run.projected import project_run, projection_source
from hybridperf.run.request import RunRequest
from hybridperf.run.spec import RunSpec
from hybridperf.system.accelerators import Devices
from hybridperf.tasks.registry import task_path
from tests.run.conftest import FAULTY

if TYPE_CHECKING:
    from pathlib import Path

H100 = Devices("gpu", 4, "NVIDIA H100 80GB HBM3")


def _request(folder: Path, task: str = "bert_large/cluster", **changes: Any) -> RunRequest:
    request = RunRequest(task_path(task), ParallelPlan.parse("dp=2,pp=2"), 1, folder)
    return dataclasses.replace(request, **changes)


@pytest.fixture
def h100(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridperf.run.projected.usable_devices", lambda: H100)


@pytest.mark.usefixtures("h100")
def test_accelerators_of_the_catalogue_are_modelled(tmp_path: Path) -> None:
    plan = ParallelPlan.parse("dp=2,pp=2,precision=bf16")

    facts = project_run(_request(tmp_path, plan=plan))

    assert facts["source"] == {
        "kind": "device model",
        "device": "NVIDIA H100 SXM",
        "system": "h100-sxm",
    }
    assert len(facts["ranks"]) == plan.pp  # type: ignore[arg-type]  # a list
    slower = project_run(_request(tmp_path, plan=dataclasses.replace(plan, precision="fp32")))
    assert slower["step_s"] > facts["step_s"]  # type: ignore[operator]  # numbers


@pytest.mark.usefixtures("h100")
def test_a_changed_batch_is_projected(tmp_path: Path) -> None:
    request = _request(tmp_path)
    batch = request.task().training.global_batch_size

    usual = project_run(request)
    double = project_run(
        dataclasses.replace(request, overrides=(("training.global_batch_size", 2 * batch),))
    )

    assert double["step_s"] > 1.5 * usual["step_s"]  # type: ignore[operator]  # numbers


@pytest.mark.usefixtures("h100")
def test_what_trains_with_other_code_is_not_projected(tmp_path: Path) -> None:
    own = tmp_path / "task.toml"
    own.write_text(task_path("resnet/laptop").read_text())

    assert projection_source(_request(tmp_path, trainer=FAULTY)) is None
    assert projection_source(_request(tmp_path, task_path=own)) is None
    assert project_run(_request(tmp_path, trainer=FAULTY)) == {}


@pytest.mark.parametrize(
    "devices",
    [
        Devices("cpu", 4, "AMD EPYC"),
        Devices("cpu", 4, "NVIDIA H100 80GB HBM3"),
        Devices("gpu", 4, "Unheard Of 9000"),
        Devices("gpu", 1, ""),
    ],
)
def test_machines_of_which_nothing_is_known_are_not_projected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: Devices
) -> None:
    monkeypatch.setattr("hybridperf.run.projected.usable_devices", lambda: devices)

    assert projection_source(_request(tmp_path)) is None


def test_a_precision_without_a_peak_is_not_projected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = Devices("gpu", 1, "Tesla V100-SXM2-16GB")
    monkeypatch.setattr("hybridperf.run.projected.usable_devices", lambda: old)

    sources = [
        projection_source(_request(tmp_path, plan=ParallelPlan(precision=precision)))
        for precision in ("fp16", "bf16")
    ]

    assert [source is None for source in sources] == [False, True]


def test_the_log_states_the_projection_before_the_launch(tmp_path: Path) -> None:
    facts: dict[str, object] = {"step_s": 0.1, "ranks": [], "timeline": [], "source": {}}
    entries = []
    for name, projection in (("with", facts), ("without", {})):
        (tmp_path / name).mkdir()
        spec = RunSpec(
            folder=str(tmp_path / name),
            attempt=0,
            task_path=str(task_path("resnet/laptop")),
            trainer=FAULTY,
            overrides={},
            plan="dp=1",
            seed=1,
            org="local",
            platform="here",
            division="open",
            clock=LogClock(),
            projection=projection,
        )
        spec.write()
        write_head(RunSpec.read(spec.path))  # as a later harness would
        entries.append(read_log(spec.log).all(keys.PROJECTION))

    assert [entry.value for entry in entries[0]] == [facts]
    assert entries[1] == []


def test_a_command_says_how_to_have_its_steps_projected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = Package(tmp_path, "local", "here", "resnet-laptop")
    request = _request(tmp_path, "resnet/laptop")
    monkeypatch.setattr("hybridperf.run.projected.usable_devices", lambda: Devices("cpu", 4, ""))

    said = [
        command._projection_hint(package, each)
        for each in (
            request,
            dataclasses.replace(request, trainer=FAULTY),
            dataclasses.replace(request, nodes=Nodes(2, 0, "localhost:29500")),
        )
    ]
    monkeypatch.setattr("hybridperf.run.projected.usable_devices", lambda: H100)
    said.append(command._projection_hint(package, request))

    assert said[0].startswith("its steps are not projected: 'hybridperf plan resnet/laptop --devic")
    assert said[1:] == ["", "", ""]
