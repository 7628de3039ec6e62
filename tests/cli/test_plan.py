"""``hybridperf plan``, ``run --plan auto`` and ``run --dry-run``."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, get_args

import pytest

from hybridperf.cli import planning
from hybridperf.cli.commands import plan as plan_command
from hybridperf.plan import ParallelPlan
from hybridperf.projection.profile import Communication, Profile, Transfer
from hybridperf.projection.units import UnitTimes
from hybridperf.run.step_time import StepTime
from hybridperf.system.accelerators import Devices
from hybridperf.tasks.registry import find_task, read_task, resolve_task, task_names

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hybridperf.run.request import RunRequest
    from tests.cli.conftest import Finished

#: of whole passes of the model and of the update, for any micro-batch: a profile without noise
FORWARD_S, UPDATE_S = 1e-3, 1e-4
CATALOGUE = ("--system", "a100-sxm", "--precision", "bf16")

MINE = """
[[system]]
name = "mine"
device = "NVIDIA A100 SXM 80 GB"
devices_per_node = 8
inside = "nvlink-3"
between = "infiniband-hdr"
adapters_per_node = 8

[[speed]]
task = "bert_large/cluster"
factor = 2
source = "a test"

[[accuracy]]
of = "fit"
median = 0.02
nine_in_ten = 0.05
worst = 0.07
results = 12
source = "a test"
"""


def profile_of(path: Path, ranks: int, precision: str = "fp32", **_: object) -> Profile:
    """Return a profile whose larger micro-batches take less time a sample."""
    task = read_task(path)
    share = 1 / len(task.units)
    times = tuple(
        UnitTimes(
            microbatch,
            (share * FORWARD_S * (1 + microbatch),) * len(task.units),
            (2 * share * FORWARD_S * (1 + microbatch),) * len(task.units),
            1e-5,
            (share * UPDATE_S,) * len(task.units),
        )
        for microbatch in (1, 32)
    )
    sizes = (1000, 1_000_000)
    transfers = tuple(
        Transfer(kind, 2, tuple((size, 1e-4 + size / 1e9) for size in sizes))
        for kind in get_args(Communication)
    )
    return Profile(
        task=task.name,
        precision=precision,
        ranks=ranks,
        threads=1,
        library="gloo",
        date="2026-01-02T03:04:05",
        unit_names=task.units,
        unit_times=times,
        contention=1.0,
        transfers=transfers,
    )


@pytest.fixture
def profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no units measured, on a machine of two cores."""
    monkeypatch.setattr(planning, "measure_profile", profile_of)
    for module in (planning, plan_command):
        monkeypatch.setattr(module, "usable_devices", lambda: Devices("cpu", 2, "a processor"))


@pytest.mark.parametrize("task", task_names())
def test_every_task_is_planned_for(hybridperf: Callable[..., Finished], task: str) -> None:
    done = hybridperf("plan", task, "--devices", "8", *CATALOGUE, "--json")

    assert done.code == 0, done.err
    found = json.loads(done.out)
    plans = [ParallelPlan.parse(each["plan"]) for each in found["equivalent"]["plans"]]
    assert len(plans) == 5
    assert all(plan.ranks == 8 and plan.equivalent for plan in plans)
    steps = [each["step_s"] for each in found["equivalent"]["plans"]]
    assert steps == sorted(steps)
    assert found["other"] is None


def test_bytes_that_a_node_sends_stand_beside_the_memory(
    hybridperf: Callable[..., Finished],
) -> None:
    words = ("plan", "vgg/cluster", *CATALOGUE, "--top", "1", "--devices")

    current = json.loads(hybridperf(*words, "16", "--plan", "dp=16", "--json").out)["current"]
    one, two = (hybridperf(*words, devices).out for devices in ("8", "16"))

    gradients = current["sent_bytes"]["gradients"] / 16
    assert current["node_sent_bytes"] == pytest.approx(2 * 15 / 16 * gradients)
    assert "memory   node sends" in two
    assert "memory" in one
    assert "node sends" not in one


def test_other_methods_stand_apart(hybridperf: Callable[..., Finished]) -> None:
    words = ("plan", "vgg/cluster", "--devices", "8", "--system", "rtx-2080ti", "--all-methods")

    done = hybridperf(*words, "--json")

    found = json.loads(done.out)
    others = [ParallelPlan.parse(each["plan"]) for each in found["other"]["plans"]]
    assert others
    assert not any(plan.equivalent for plan in others)
    # By step time alone, plans that hide what they send always win.
    first, fastest = found["equivalent"]["plans"][0], found["other"]["plans"][0]
    assert fastest["step_s"] < first["step_s"]
    assert fastest["time_to_target_s"] is None
    assert "Plans that are not equivalent to single-process training" in hybridperf(*words).out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--devices 0", "expected a whole number of devices from 1 to 1000000, found '0'"),
        ("--devices -4", "expected a whole number of devices from 1 to 1000000, found '-4'"),
        ("--devices 9999", "which are here, found --devices 9999; lower it, or name a --system"),
        ("--devices 8 --system a100-sxn", "found 'a100-sxn'; did you mean a100-sxm"),
        ("--devices 8 --system a100-sxm --memory-gb 0", "expected gigabytes above 0"),
        ("--devices 8 --system a100-sxm --memory-gb nan", "expected gigabytes above 0"),
        (
            "--devices 8 --system a100-sxm --measure 3",
            "expected --system here with --measure, found 'a100-sxm'; drop one of them.",
        ),
        (
            "--devices 8 --system a100-sxm --remeasure",
            "expected --system here with --remeasure, found 'a100-sxm'; drop one of them.",
        ),
        ("--devices 8 --system a100-sxm --set optimizer.lrr=1", "did you mean optimizer.lr?"),
        (
            "--devices 17 --system a100-sxm",
            "a batch of 32 samples can be divided, found 17; use 16, or change",
        ),
        (
            "--devices 8 --system a100-sxm --memory-gb 0.0001",
            "resnet/laptop: expected a plan that needs at most 0.0001 GB on a device, found ",
        ),
    ],
)
def test_what_cannot_be_planned_is_said_in_a_sentence(
    hybridperf: Callable[..., Finished], arguments: str, said: str
) -> None:
    done = hybridperf("plan", "resnet/laptop", *arguments.split())

    assert done.code == 2
    assert said in done.sentence
    assert len(done.err.strip().splitlines()) == 1


def test_too_little_memory_names_the_nearest_plan_and_what_it_needs(
    hybridperf: Callable[..., Finished],
) -> None:
    words = ("plan", "bert_large/cluster", "--devices", "2", *CATALOGUE)

    done = hybridperf(*words, "--memory-gb", "1")

    assert done.code == 2
    needed = float(done.sentence.partition("found ")[2].partition(" GB")[0])
    nearest = done.sentence.partition("GB under ")[2].partition(", the plan")[0]
    assert needed > 1
    assert ParallelPlan.parse(nearest).ranks == 2
    # It is enough where there is that much, to three digits, and not where there is less.
    assert hybridperf(*words, "--memory-gb", f"{needed * 1.005}").code == 0
    assert hybridperf(*words, "--memory-gb", f"{needed * 0.99}").code == 2


CURRENT = "dp=4,pp=2,schedule=gpipe,microbatches=4"


def test_the_current_plan_has_a_range_headroom_and_faster_plans(
    hybridperf: Callable[..., Finished],
) -> None:
    words = ("plan", "bert_large/cluster", "--devices", "8", *CATALOGUE, "--plan", CURRENT)

    found = json.loads(hybridperf(*words, "--json").out)

    current, error = found["current"], found["current"]["ratio_accuracy"]["nine_in_ten"]
    assert current["plan"] == f"{CURRENT},precision=bf16"
    low, high = current["step_range_s"]
    assert low == pytest.approx(current["step_s"] * (1 - found["accuracy"]["nine_in_ten"]))
    assert high == pytest.approx(current["step_s"] * (1 + found["accuracy"]["nine_in_ten"]))
    size = found["device_memory_bytes"]
    assert current["headroom_bytes"] == [size - each for each in current["memory_bytes"]]
    assert len(current["headroom_bytes"]) == 2
    steps = {each["plan"]: each["step_s"] for each in found["equivalent"]["plans"]}
    assert current["faster"]
    for each in current["faster"]:
        speedup = current["step_s"] / steps[each["plan"]] - 1
        assert each["speedup"] == pytest.approx(speedup)
        assert speedup > error


def test_plans_within_the_error_of_projections_are_not_called_faster(
    hybridperf: Callable[..., Finished],
) -> None:
    words = ("plan", "bert_large/cluster", "--devices", "8", *CATALOGUE)
    second = json.loads(hybridperf(*words, "--json").out)["equivalent"]["plans"][-1]

    now = ("--plan", second["plan"])
    assert json.loads(hybridperf(*words, *now, "--json").out)["current"]["faster"] == []
    said = hybridperf(*words, *now).out
    assert f"memory headroom of {second['plan']}, free of 80.00 GB of a device: rank 0 " in said
    assert "no plan is " in said
    assert "error of projected ratios of two plans: nine of ten within 18.9%" in said
    assert "range: nine of ten errors are within 43.3%" in said


def test_a_current_plan_that_does_not_fit_says_what_it_lacks(
    hybridperf: Callable[..., Finished],
) -> None:
    words = ("plan", "bert_large/cluster", "--devices", "8", *CATALOGUE, "--memory-gb", "40")

    done = hybridperf(*words, "--plan", "dp=8,microbatches=4,precision=bf16")

    assert "free of 40.00 GB of a device: rank 0 lacks " in done.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--plan dp=4", "expected a plan of 8 ranks, one on each of --devices, found --plan dp=4"),
        ("--plan dp=8,zero=7", "expected"),
        ("--plan dp=8,precision=fp16", "expected a plan in the precision bf16 of --precision"),
        ("--plan tp=8", "expected"),
    ],
)
def test_a_current_plan_that_is_not_for_the_devices_is_refused(
    hybridperf: Callable[..., Finished], words: str, said: str
) -> None:
    done = hybridperf(*("plan", "resnet50/cluster", "--devices", "8", *CATALOGUE), *words.split())

    assert done.code == 2
    assert said in done.sentence
    assert len(done.err.splitlines()) == 1


def test_a_system_file_is_planned_for_with_its_own_error(
    hybridperf: Callable[..., Finished], tmp_path: Path
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MINE)
    words = ("plan", "bert_large/cluster", "--devices", "8", "--precision", "bf16", "--json")

    found = json.loads(hybridperf(*words, "--system", str(path)).out)

    catalogue = json.loads(hybridperf(*words, "--system", "a100-sxm").out)
    assert (found["system"], found["source"]) == (str(path), "NVIDIA A100 SXM 80 GB")
    assert found["accuracy"]["nine_in_ten"] == 0.05
    first, base = (each["equivalent"]["plans"][0] for each in (found, catalogue))
    assert first["step_range_s"] == pytest.approx([first["step_s"] * each for each in (0.95, 1.05)])
    assert first["step_s"] == pytest.approx(base["step_s"] / 2, rel=0.05)


@pytest.mark.usefixtures("profiled")
@pytest.mark.parametrize("task", [name for name in task_names() if name.endswith("/laptop")])
def test_this_machine_is_planned_for_by_its_profile(
    hybridperf: Callable[..., Finished], task: str
) -> None:
    done = hybridperf("plan", task, "--devices", "2", "--all-methods", "--json")

    found = json.loads(done.out)
    assert (found["system"], found["source"]) == ("here", "a profile of 2026-01-02")
    first = found["equivalent"]["plans"][0]
    reference = find_task(task).reference
    assert reference is not None
    steps = found["samples_to_target"] / reference.global_batch_size
    assert first["time_to_target_s"] == pytest.approx(steps * first["step_s"])
    assert min(reference.samples_to_target) < found["samples_to_target"]
    one = json.loads(hybridperf("plan", task, "--devices", "1", "--json").out)
    passes_s = 3 * FORWARD_S * (1 + reference.global_batch_size) + 1e-5
    alone = next(each for each in one["equivalent"]["plans"] if each["plan"] == "dp=1")
    assert alone["step_s"] == pytest.approx(passes_s + UPDATE_S, rel=1e-3)
    assert first["step_s"] < alone["step_s"]


@pytest.mark.usefixtures("profiled")
def test_the_current_plan_is_measured_with_the_first_plans(
    hybridperf: Callable[..., Finished], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(request: RunRequest, steps: int) -> StepTime:
        return StepTime(steps, 0.010 if request.plan.pp == 1 else 0.011)

    monkeypatch.setattr(plan_command, "measure_steps", measure)
    words = ("plan", "resnet/laptop", "--devices", "2", "--plan", "pp=2", "--json")

    current = json.loads(hybridperf(*words, "--measure", "1").out)["current"]

    assert current["measured_step_s"] == 0.011
    # Two measured steps are compared as they are: 10 % is less than the error of projections.
    assert [each["speedup"] for each in current["faster"]] == [pytest.approx(0.1)]
    accuracy = json.loads(hybridperf(*words).out)["accuracy"]
    assert (accuracy["of"], accuracy["results"]) == ("profile", 32)


@pytest.mark.usefixtures("profiled")
def test_measured_steps_decide(
    hybridperf: Callable[..., Finished], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[RunRequest] = []

    def measure(request: RunRequest, steps: int) -> StepTime:
        asked.append(request)
        return StepTime(steps, 1.0 / len(asked))

    monkeypatch.setattr(plan_command, "measure_steps", measure)

    done = hybridperf("plan", "resnet/laptop", "--devices", "2", "--measure", "3", "--json")

    plans = json.loads(done.out)["equivalent"]["plans"]
    # One order: plans that were measured to be slower come after what is projected.
    assert [each["measured_step_s"] for each in plans] == [None, None, 1 / 3, 1 / 2, 1.0]
    assert max(each["step_s"] for each in plans[:2]) < 1 / 3
    assert [str(each.plan) for each in asked] == [each["plan"] for each in plans[:1:-1]]
    # What takes long is said as it begins, where standard output is redirected, too.
    stages = [f"hybridperf: training 20 steps under {each.plan}" for each in asked]
    assert done.err.splitlines() == stages


def test_profiles_are_asked_for_as_the_command_says(
    hybridperf: Callable[..., Finished], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, object]] = []

    def profile(path: Path, ranks: int, precision: str, **options: Any) -> Profile:
        options.pop("say")("measuring")
        asked.append(options)
        return profile_of(path, ranks, precision)

    monkeypatch.setattr(planning, "measure_profile", profile)
    for words in ((), ("--remeasure",), ("--busy",)):
        done = hybridperf("plan", "resnet/laptop", "--devices", "1", *words, "--json")

        assert done.err == "hybridperf: measuring\n"
    assert asked == [
        {"remeasure": remeasure, "busy_too": busy}
        for remeasure, busy in ((False, False), (True, False), (False, True))
    ]


@pytest.mark.usefixtures("profiled")
def test_auto_runs_the_first_plan_for_the_devices_here(
    hybridperf: Callable[..., Finished],
) -> None:
    chosen = hybridperf("run", "resnet/laptop", "--plan", "auto", "--dry-run", "--json")

    (plan,) = json.loads(chosen.out)["equivalent"]["plans"]
    ranked = hybridperf("plan", "resnet/laptop", "--devices", "2", "--json")
    first = json.loads(ranked.out)["equivalent"]["plans"][0]
    assert plan["plan"] == first["plan"]
    assert plan["step_s"] == pytest.approx(first["step_s"])
    said = hybridperf("run", "resnet/laptop", "--plan", "auto", "--dry-run").out
    assert f"Without --dry-run: hybridperf run resnet/laptop --plan {plan['plan']} --runs" in said


@pytest.mark.usefixtures("profiled")
def test_auto_leaves_devices_that_no_plan_divides(
    hybridperf: Callable[..., Finished], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "usable_devices", lambda: Devices("cpu", 19, "a processor"))

    done = hybridperf(
        *("run", "resnet/laptop", "--plan", "auto", "--dry-run", "--json"),
        *("--set", "training.global_batch_size=3"),
    )

    assert "at most" in done.sentence  # this machine has fewer cores, and says so
    assert "x pp = 18" in done.sentence


def test_auto_is_for_one_node(hybridperf: Callable[..., Finished]) -> None:
    words = ("--nodes", "2", "--node-rank", "0", "--rendezvous", "here:29500")

    done = hybridperf("run", "resnet/laptop", "--plan", "auto", *words)

    assert done.code == 2
    assert "expected a plan where there are several nodes, found --plan auto" in done.sentence


@pytest.mark.usefixtures("profiled")
def test_a_dry_run_projects_the_plan_and_leaves_nothing(
    hybridperf: Callable[..., Finished], tmp_path: Path
) -> None:
    done = hybridperf("run", "resnet/laptop", "--plan", "dp=2", "--dry-run", "--out", f"{tmp_path}")

    assert done.code == 0
    assert "\ndp=2 " in done.out
    assert "Without --dry-run: hybridperf run resnet/laptop --plan dp=2" in done.out
    cut = hybridperf("run", "resnet/laptop", "--plan", "pp=2,cuts=1", "--dry-run")
    assert "\nstages: stem | layer1.0 to head\n" in cut.out
    refused = hybridperf("run", "resnet/laptop", "--plan", "dp=3", "--dry-run")
    assert "dp x microbatches to divide the batch" in refused.sentence


def test_one_plan_is_projected_as_the_search_does() -> None:
    """Clipping included, for which the ranks of a pipeline wait."""
    path = resolve_task("bert_large/cluster")
    setting = planning.setting_of(path, read_task(path), system="a100-sxm", devices=8)
    plan = ParallelPlan.parse("dp=2,pp=4,microbatches=64")
    unclipped = dataclasses.replace(setting, work=dataclasses.replace(setting.work, clips=False))

    assert setting.work.clips
    assert setting.projection(plan).step_s > unclipped.projection(plan).step_s
