"""What the sandbox lets through, and when a run has none."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil
import pytest

from hybridperf.cli.commands import run as command
from hybridperf.plan import ParallelPlan
from hybridperf.run import sandbox
from hybridperf.run.launcher import python_command
from hybridperf.run.provenance import package_folder
from hybridperf.run.request import RunRequest
from hybridperf.run.sandbox import clean_environment, mode_of, policy_of, sandbox_facts
from hybridperf.system.landlock import Policy
from hybridperf.tasks.data import data_files
from hybridperf.tasks.registry import find_task, task_path
from tests.run_spec import run_spec

if TYPE_CHECKING:
    from hybridperf.run.spec import Mode, RunSpec


@pytest.fixture
def spec(tmp_path: Path) -> RunSpec:
    return run_spec(
        tmp_path / "result/.attempt_0", trainer="tests.trainers.nearest", mode="sandboxed"
    )


def readable(policy: Policy, path: Path) -> bool:
    return any(path.resolve().is_relative_to(each) for each in policy.readable)


@pytest.mark.parametrize("task", ["resnet/laptop", "bert/laptop"])
def test_libraries_and_trainer_are_readable_and_the_data_inside_of_them_is_not(
    spec: RunSpec, task: str
) -> None:
    spec = dataclasses.replace(spec, task_path=str(task_path(task)))
    (*files,) = data_files(spec.task().data)

    policy = policy_of(spec, writable=[spec.work])

    assert files
    assert not any(readable(policy, path) for path in files)
    siblings = [path for path in files[0].parent.iterdir() if path not in files]
    assert any(readable(policy, path) for path in siblings)
    assert readable(policy, Path(np.__file__))
    assert readable(policy, Path(__file__).parents[1] / "trainers/nearest/train.py")
    assert readable(policy, task_path(task))
    assert not readable(policy, spec.path)
    assert policy.writable == (str(spec.work),)
    assert policy.ports is None


@pytest.mark.parametrize("trainer", ["tests.trainers.nearest", "hybridperf_reference"])
def test_what_python_compiled_of_trainer_and_harness_is_not_readable(
    spec: RunSpec, trainer: str
) -> None:
    policy = policy_of(dataclasses.replace(spec, trainer=trainer), writable=[])

    tops = Path(sandbox.__file__).parents[1], package_folder(trainer)
    compiled = [path for top in tops for path in top.rglob("__pycache__")]
    assert compiled
    assert not any(readable(policy, path) for path in compiled)
    assert all(readable(policy, top / "__init__.py") for top in tops)


def test_results_in_a_folder_with_code_are_not_readable(
    spec: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "result/.attempt_0").mkdir(parents=True)
    (tmp_path / "module.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path / "first"))  # the folder of the program

    policy = policy_of(spec, writable=[])

    assert readable(policy, tmp_path / "module.py")
    assert not readable(policy, tmp_path / "result/result_0.txt")


def test_the_policy_comes_back_from_its_file(spec: RunSpec, tmp_path: Path) -> None:
    for ranks in (1, 2):
        policy = policy_of(spec, writable=[spec.work], ranks=ranks)
        assert Policy.read(policy.write(tmp_path)) == policy
    assert policy.ports is not None
    assert 1024 <= policy.ports[0] < policy.ports[1]


def test_ranks_find_modules_where_the_harness_does_and_first_not_where_it_was_started(
    spec: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boxed = dataclasses.replace(spec, sandbox={"kind": "landlock"})
    shadowing, changed = tmp_path / "started", tmp_path / "changed"
    for folder in (shadowing, changed):
        folder.mkdir()
        (folder / "json.py").write_text("")
        (folder / "psutil.py").write_text("def main(): pass")
    (shadowing / "shown.py").write_text(
        "import json, psutil\ndef main(): print(json.__file__, psutil.__file__)"
    )
    monkeypatch.setattr(sys, "path", [str(shadowing), *sys.path[1:], str(changed)])
    library = Path(json.__file__)
    installed = Path(psutil.__file__)

    def found() -> list[str]:
        command = python_command(boxed, "shown")
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    assert found() == [str(library), str(installed)]
    monkeypatch.setattr(sys, "path", [str(shadowing), str(changed), *sys.path[1:]])
    assert found()[1] == str(changed / "psutil.py")


def test_variables_that_change_programs_or_tell_secrets_do_not_reach_a_trainer(
    tmp_path: Path,
) -> None:
    kept = {"PATH": "/bin", "OMP_NUM_THREADS": "2", "NCCL_DEBUG": "INFO", "RANK": "1"}
    dropped = ("LD_PRELOAD", "LD_AUDIT", "PYTHONPATH", "PYTHONSTARTUP", "AWS_SECRET_ACCESS_KEY")
    others = ("HF_TOKEN", "SSH_AUTH_SOCK", "USER", "MAIL")

    clean = clean_environment({**kept, **dict.fromkeys((*dropped, *others), "x")}, tmp_path)

    assert clean.items() >= kept.items()
    assert not clean.keys() & {*dropped, *others}
    assert {clean[name] for name in clean.keys() - kept.keys()} == {str(tmp_path)}


def test_ranks_of_several_nodes_keep_the_network_and_the_ports_that_the_kernel_assigns(
    spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "why_no_landlock", lambda: "")
    monkeypatch.setattr(sandbox, "why_no_namespaces", lambda: "")
    facts = sandbox_facts("sandboxed", 2)
    spec = dataclasses.replace(spec, nodes=2, plan="dp=2", sandbox=facts)

    policy = policy_of(spec, writable=[spec.work])

    assert policy.network
    assert policy.ports == tuple(facts["ports"])  # type: ignore[arg-type]  # of two numbers
    assert policy.visible is not None
    assert not any(readable(policy, path) for path in data_files(spec.task().data))
    alone = policy_of(dataclasses.replace(spec, nodes=1), writable=[])
    assert (alone.network, alone.ports) == (False, None)
    assert "ports" not in sandbox_facts("sandboxed", 1)


@pytest.mark.parametrize("quiet", [True, False])
def test_a_trainer_without_a_sandbox_is_announced_before_it_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    quiet: bool,
) -> None:
    before: list[str] = []

    def make_run_set(*_: object) -> list[object]:
        printed = capsys.readouterr()
        before.extend((printed.err if quiet else printed.out).splitlines())
        return []

    def announced(mode: Mode) -> list[str]:
        before.clear()
        plan = ParallelPlan()
        request = RunRequest(task_path("resnet/laptop"), plan, 1, tmp_path / "out", mode=mode)
        command.make_runs(request, quiet=quiet)
        return [line for line in before if "sandbox" in line]

    monkeypatch.setattr(command, "make_run_set", make_run_set)
    monkeypatch.setattr(command, "_projection_hint", lambda *_: "")
    monkeypatch.setattr(sandbox, "landlock_abi", lambda: 7)
    monkeypatch.setattr(sandbox, "why_no_landlock", lambda: "")
    assert announced("sandboxed") == announced("open") == []

    monkeypatch.setattr(sandbox, "why_no_landlock", lambda: "the kernel has no Landlock")
    assert announced("open") == []
    (line,) = announced("sandboxed")
    assert line.startswith("no sandbox, since the kernel has no Landlock: the trainer runs with ")


def test_without_landlock_a_run_is_open_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    task, large = find_task("resnet/laptop"), find_task("resnet50/cluster")
    monkeypatch.setattr(sandbox, "landlock_abi", lambda: 7)
    assert mode_of(task, "sandboxed") == "sandboxed"
    assert mode_of(task, "open") == "open"
    assert mode_of(large, "sandboxed") == "open"
    monkeypatch.setattr(sandbox, "landlock_abi", lambda: 0)
    monkeypatch.setattr(sandbox, "why_no_landlock", lambda: "the kernel has no Landlock")

    assert mode_of(task, "sandboxed") == "open"
    assert sandbox_facts("sandboxed", 1) == {
        "kind": "none",
        "reason": "the kernel has no Landlock",
    }
    assert sandbox_facts("open", 1)["kind"] == "none"
