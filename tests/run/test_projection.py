"""What is projected before a run, from what is known of this machine, and the log's line of it."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.cli import main
from hybridperf.cli.commands import run as command
from hybridperf.errors import UserError
from hybridperf.log import keys
from hybridperf.log.package import Package, find_results, read_result
from hybridperf.log.reader import read_log
from hybridperf.log.writer import LogClock
from hybridperf.plan import ParallelPlan
from hybridperf.projection.partition import stage_cuts
from hybridperf.projection.profile import Profile, Transfer
from hybridperf.projection.project import project
from hybridperf.projection.units import UnitTimes, load_units
from hybridperf.report.evidence import timelines_of
from hybridperf.run import profiles
from hybridperf.run.attempt import write_head
from hybridperf.run.files import canonical_json
from hybridperf.run.nodes import Nodes
from hybridperf.run.projection import project_run, projection_source, with_projected_cuts
from hybridperf.run.request import RunRequest
from hybridperf.run.spec import RunSpec
from hybridperf.score.score import score_result
from hybridperf.system.accelerators import Devices
from hybridperf.tasks.registry import read_task, task_path
from tests.run.conftest import FAULTY, finished

if TYPE_CHECKING:
    from pathlib import Path

    from tests.run.conftest import Bench

H100 = Devices("gpu", 4, "NVIDIA H100 80GB HBM3")


def _request(folder: Path, task: str = "bert_large/cluster", **changes: Any) -> RunRequest:
    request = RunRequest(task_path(task), ParallelPlan.parse("dp=2,pp=2"), 1, folder)
    return dataclasses.replace(request, **changes)


CODE_HASHES = ("trainer_sha256", "suite_sha256")


@pytest.fixture
def h100(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridperf.run.projection.usable_devices", lambda: H100)


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
    monkeypatch.setattr("hybridperf.run.projection.usable_devices", lambda: devices)

    assert projection_source(_request(tmp_path)) is None


def test_a_precision_without_a_peak_is_not_projected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = Devices("gpu", 1, "Tesla V100-SXM2-16GB")
    monkeypatch.setattr("hybridperf.run.projection.usable_devices", lambda: old)

    sources = [
        projection_source(_request(tmp_path, plan=ParallelPlan(precision=precision)))
        for precision in ("fp16", "bf16")
    ]

    assert [source is None for source in sources] == [False, True]


@pytest.mark.usefixtures("h100")
def test_bytes_between_nodes_are_projected_where_there_are_several(tmp_path: Path) -> None:
    request = _request(tmp_path, plan=ParallelPlan.parse("dp=4,precision=bf16"))
    both = dataclasses.replace(request, nodes=Nodes(2, 0, "a:1"))

    alone, found = project_run(request), project_run(both)

    gradients = 4 * sum(unit.parameters for unit in load_units("bert_large/cluster").units)
    shared = 4 * 30522 * 1024  # the tied embedding, which two units count
    assert "node_sent_bytes" not in alone
    assert found.pop("node_sent_bytes") == pytest.approx(1.5 * (gradients - shared), rel=1e-6)


def _profile(request: RunRequest, ranks: int) -> Profile:
    """Return a made-up profile: 2 ms forward and 4 ms backward in each unit, none to send."""
    names = tuple(unit.name for unit in load_units(request.task().name).units)
    each = (0.002,) * len(names)
    return Profile(
        task=request.task().name,
        precision="fp32",
        ranks=ranks,
        threads=1,
        library="gloo",
        date="2026-11-22T15:30:00+00:00",
        unit_names=names,
        unit_times=(UnitTimes(16, each, tuple(2 * one for one in each), 0.0, (0.0,) * len(names)),),
        contention=1.0,
        transfers=tuple(
            Transfer(kind, 2, ((1000, 1e-9), (2000, 2e-9))) for kind in ("send", "all_reduce")
        ),
        made_with=profiles._machine_and_code_of(read_task(request.task_path)),
    )


def _store(profile: Profile, request: RunRequest) -> None:
    place = profiles._profile_path(read_task(request.task_path), profile.ranks, profile.precision)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(canonical_json(profile.as_table()))


@pytest.mark.usefixtures("h100")
@pytest.mark.parametrize("text", ["dp=1", "dp=2", "pp=2"])
def test_a_profile_of_this_machine_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plan = ParallelPlan.parse(text)
    request = _request(tmp_path, "resnet/laptop", plan=plan)
    modelled = project_run(request)
    profile = _profile(request, plan.ranks)
    _store(profile, request)

    facts = project_run(request)

    sha256 = hashlib.sha256(canonical_json(profile.as_table())).hexdigest()
    assert facts["source"] == {"kind": "profile", "date": "2026-11-22", "sha256": sha256}
    assert modelled["source"] != facts["source"]
    if text != "pp=2":
        assert facts["step_s"] == pytest.approx(0.006 * len(profile.unit_names), rel=1e-3)


def test_profiles_that_do_not_hold_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybridperf.run.projection.usable_devices", lambda: Devices("cpu", 4, ""))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    request = _request(tmp_path, "resnet/laptop", plan=ParallelPlan.parse("dp=2"))
    profile = _profile(request, 2)

    each = (1.0,)
    times = dataclasses.replace(
        profile.unit_times[0], forward_s=each, backward_s=each, update_s=each
    )
    for changed in (
        dataclasses.replace(profile, made_with={}),
        dataclasses.replace(profile, unit_names=("all",), unit_times=(times,)),
    ):
        _store(changed, request)
        assert projection_source(request) is None
    _store(profile, request)
    assert projection_source(request) is not None
    assert projection_source(dataclasses.replace(request, nodes=Nodes(2, 0, "a:1"))) is None


def _unequal(request: RunRequest) -> Profile:
    """Return a made-up profile in which the last unit takes as long as all others."""
    profile = _profile(request, 2)
    each = (0.001,) * (len(profile.unit_names) - 1)
    each += (sum(each),)
    (times,) = profile.unit_times
    return dataclasses.replace(
        profile, unit_times=(dataclasses.replace(times, forward_s=each, backward_s=each),)
    )


def test_ampa_cuts_by_a_profile_once_and_in_the_plans_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybridperf.run.projection.usable_devices", lambda: Devices("cpu", 4, ""))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plan = ParallelPlan.parse("pp=2,cut=ampa,microbatches=4")
    request = _request(tmp_path, "resnet/laptop", plan=plan)
    assert with_projected_cuts(request) == request  # by FLOPs, on the ranks
    profile = _unequal(request)
    _store(profile, request)

    found = with_projected_cuts(request)

    last = len(profile.unit_names) - 1
    assert found == dataclasses.replace(
        request, plan=ParallelPlan.parse(f"pp=2,cuts={last},microbatches=4")
    )
    assert stage_cuts(plan, load_units("resnet/laptop").units) != (last,)
    assert with_projected_cuts(found) == found
    nodes = dataclasses.replace(request, nodes=Nodes(2, 0, "a:1"))
    assert with_projected_cuts(nodes) == nodes
    for text in ("pp=2,microbatches=4", "dp=2,cut=ampa"):
        other = dataclasses.replace(request, plan=ParallelPlan.parse(text))
        assert with_projected_cuts(other) == other


def test_ampa_cuts_such_that_every_device_has_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybridperf.run.projection.usable_devices", lambda: Devices("cpu", 4, ""))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    request = _request(
        tmp_path, "vgg/laptop", plan=ParallelPlan.parse("pp=2,cut=ampa,microbatches=4")
    )
    profile = _unequal(request)
    _store(profile, request)
    source = projection_source(request)
    assert source is not None

    def fullest(cut: int) -> int:
        found = project(
            ParallelPlan.parse(f"pp=2,cuts={cut},microbatches=4"),
            source.units,
            source.timing,
            source.network,
            global_batch_size=request.task().training.global_batch_size,
            optimizer=request.task().optimizer.name,
        )
        return max(found.memory_bytes)

    needed = {cut: fullest(cut) for cut in range(1, len(profile.unit_names))}
    (usual,) = with_projected_cuts(request).plan.cuts
    least = min(needed, key=lambda cut: needed[cut])
    assert needed[usual] > needed[least]
    for most, fits in ((needed[least], True), (needed[least] - 1, False)):
        monkeypatch.setattr("hybridperf.run.projection.device_memory_bytes", lambda _, n=most: n)
        if fits:
            assert with_projected_cuts(request).plan.cuts == (least,)
        else:
            with pytest.raises(UserError, match="cuts by which each device needs at most"):
                with_projected_cuts(request)


def test_a_run_states_the_cuts_that_it_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hybridperf.run.projection.usable_devices", lambda: Devices("cpu", 4, ""))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    text = "pp=2,cut=ampa,microbatches=4"
    request = _request(tmp_path, "resnet/laptop", plan=ParallelPlan.parse(text))
    _store(_unequal(request), request)

    code = main(("run", "resnet/laptop", "--plan", text, "--out", str(tmp_path), "--dry-run"))

    cuts = len(read_task(request.task_path).units) - 1
    said, _, repeats = capsys.readouterr().out.partition("Without --dry-run: ")
    assert code == 0
    assert f"--plan pp=2,schedule=1f1b,cuts={cuts},microbatches=4 " in repeats
    assert "cut=ampa,microbatches=4: its step is projected to be shortest under" in said


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
    monkeypatch.setattr("hybridperf.run.projection.usable_devices", lambda: Devices("cpu", 4, ""))

    said = [
        command._projection_hint(package, each)
        for each in (
            request,
            dataclasses.replace(request, trainer=FAULTY),
            dataclasses.replace(request, nodes=Nodes(2, 0, "localhost:29500")),
        )
    ]
    monkeypatch.setattr("hybridperf.run.projection.usable_devices", lambda: H100)
    said.append(command._projection_hint(package, request))

    assert said[0].startswith("its steps are not projected: 'hybridperf plan resnet/laptop --devic")
    assert said[1:] == ["", "", ""]


def test_a_run_states_its_projection_where_there_is_a_profile(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two runs of an epoch, the first without a profile; the scores compare what there is.

    By the reference points they converge too fast, which does not matter here.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    # As in commands of tests, which state one hash of all code.
    code = {"trainer": "hybridperf_reference"} | dict.fromkeys(CODE_HASHES, "0" * 64)
    monkeypatch.setattr(profiles, "code_hashes", lambda _: code)
    request = _request(tmp_path, "resnet/laptop", plan=ParallelPlan.parse("pp=2"))
    task = bench.tasks / "resnet/laptop.toml"
    task.write_text(task.read_text().replace("target = 0.98\n", "target = 0.2\n"))
    arguments = ["run", "resnet/laptop", "--plan", "pp=2", "--out", str(bench.out), "--runs"]

    where = {"XDG_CACHE_HOME": str(tmp_path), "COLUMNS": "400"}
    before = finished(bench.command(*arguments, "1", **where))
    _store(_profile(request, 2), request)
    after = finished(bench.command(*arguments, "2", **where))

    assert "its steps are not projected: 'hybridperf plan resnet/laptop --devices 2'" in before.out
    assert "not projected" not in after.out
    (package,) = find_results(bench.out)
    first, second = (run.log for run in read_result(package).runs)
    assert first.first(keys.RUN_STOP) is not None, before.err
    assert second.first(keys.RUN_STOP) is not None, after.err
    assert first.first(keys.PROJECTION) is None
    (entry,) = second.all(keys.PROJECTION)
    assert entry.value == project_run(request)
    assert entry.line < second.first(keys.INIT_STOP).line  # type: ignore[union-attr]  # it is there
    beside = score_result(read_result(package)).beside_projection
    assert beside is not None
    assert [part.rank for part in beside.parts[:2]] == ["stage 0", "stage 1"]
    names = [name for name, _ in timelines_of(read_result(package))]
    assert names == ["projected", f"measured, run {read_result(package).runs[1].number}"]
    assert f"{request.plan}: {beside.sentence}" in after.out.splitlines()
