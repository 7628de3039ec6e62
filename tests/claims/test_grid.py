"""Claims by projection: golden ratios, and what moves a reading of a grid."""

from __future__ import annotations

import dataclasses
import json
import shlex
import tomllib
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, Final

import pytest

from hybridperf.claims.claim import ProjectCheck
from hybridperf.claims.grid import project_grid
from hybridperf.cli import main
from hybridperf.errors import UserError
from hybridperf.projection.systems import accuracy_of
from hybridperf.tasks.schema import build

if TYPE_CHECKING:
    from hybridperf.claims.verdict import ClaimReading

ROOT: Final = Path(__file__).parents[2]
RESNET, RESNET_152, VGG = TASKS = "resnet50/cluster", "resnet152/cluster", "vgg/cluster"
BLOCKING, OVERLAPPED, DELAYED = "dp=8,sync=blocking", "dp=8", "dp=8,staleness=1"
GROPIPE: Final = "dp=4,pp=2,microbatches={},staleness=1,flush=off"
ONE: Final = GROPIPE.format(1)
#: eight RTX 2080 Ti in fp32, with 32 samples on a device
CHECK: Final = ProjectCheck(
    tasks=(RESNET,),
    plans=(ONE,),
    bases=(BLOCKING,),
    systems=("rtx-2080ti",),
    batches=(32,),
    precisions=("fp32",),
    metric="speedup",
)


def _readings(**changes: Any) -> tuple[ClaimReading, ...]:
    return project_grid(dataclasses.replace(CHECK, **changes)).readings


def _ratio(**changes: Any) -> float:
    (reading,) = _readings(**changes)
    return reading.value


@pytest.mark.parametrize(
    ("plan", "first_found", "ratios"),
    [
        (GROPIPE.format(4), (1.05, None, None), (1.13, 1.22, 1.58)),
        (GROPIPE.format(2), (1.18, None, None), (1.21, 1.33, 1.59)),
        (ONE, (1.24, 1.41, 1.61), (1.25, 1.40, 1.60)),
        (f"{ONE},links=int8", (1.43, 1.46, 1.82), (1.32, 1.41, 1.72)),
        (DELAYED, (1.41, 1.37, 1.82), (1.42, 1.38, 1.81)),
        (OVERLAPPED, (1.40, 1.36, 1.54), (1.41, 1.36, 1.55)),
    ],
)
def test_gropipe_on_links_of_pcie(
    plan: str, first_found: tuple[float | None, ...], ratios: tuple[float, ...]
) -> None:
    """State the ratios of ResNet-50, ResNet-152 and VGG-16, and those that were found first.

    Since then the overhead of a layer is seconds by generation of devices and precision, by which
    many micro-batches are less slow, and codecs of ``links`` read and write memory, by which int8
    gains less.
    """
    found = [reading.value for reading in _readings(tasks=TASKS, plans=(plan,))]

    assert [round(each, 2) for each in found] == list(ratios)
    for now, before in zip(found, first_found, strict=True):
        assert before is None or now == pytest.approx(before, rel=0.08)
    cells = " | ".join(f"{each:.2f}" for each in (*found[:2], mean(found[:2]), found[2]))
    page = (ROOT / "docs/projection.md").read_text(encoding="utf-8")
    assert f"| `{plan}` | {cells} |\n" in page


def test_over_a_pipeline_alone_more_is_projected_than_is_claimed() -> None:
    """The claims are 1.140 and 1.439."""
    found = [
        round(each.value, 2)
        for each in _readings(tasks=TASKS, bases=("pp=8,microbatches=8,staleness=1,flush=off",))
    ]

    assert found == [2.15, 1.42, 1.82]
    page = (ROOT / "docs/projection.md").read_text(encoding="utf-8")
    assert "2.15 (ResNet-50), 1.42 (ResNet-152) and 1.82 (VGG-16)" in page


def test_a_claim_on_a_series_is_read_as_the_mean_of_its_models() -> None:
    (reading,) = _readings(tasks=TASKS[:2], mean_of_tasks=True, metric="gain")

    assert reading.value == pytest.approx(32.1, abs=0.1)  # of 42.2 % that are claimed
    assert reading.value == pytest.approx(
        mean(each.value for each in _readings(tasks=TASKS[:2], metric="gain"))
    )
    assert reading.conditions["task"] == "resnet50/cluster and resnet152/cluster"


def test_the_interval_has_nine_of_ten_errors_of_projections() -> None:
    (reading,) = _readings()

    error = accuracy_of("two plans").nine_in_ten
    assert reading.low is not None
    assert reading.high is not None
    assert reading.low * (1 + error) == pytest.approx(reading.value)
    assert reading.high * (1 - error) == pytest.approx(reading.value)
    assert reading.low < 1.422 < reading.high


def test_a_point_on_nvlink_changes_the_reading() -> None:
    """Hiding the all-reduce over NVLink gains 3 % and 8 %, and a pipeline none of it."""
    fast = {"systems": ("a100-sxm",), "precisions": ("fp16",), "batches": (64,)}

    assert _ratio(**fast) < 1 < 1.2 < _ratio()
    assert _ratio(**fast, plans=(DELAYED,)) == pytest.approx(1.03, abs=0.005)
    assert _ratio(**fast, plans=(DELAYED,), tasks=(VGG,)) == pytest.approx(1.085, abs=0.005)


def test_over_the_strongest_base_nothing_is_left_for_resnets() -> None:
    check = dataclasses.replace(CHECK, tasks=TASKS, strongest=(OVERLAPPED, DELAYED), metric="gain")
    strongest = project_grid(check).strongest

    gains = {(each.conditions["task"], each.conditions["base"]): each.value for each in strongest}
    assert gains[RESNET, OVERLAPPED] < 0
    assert gains[RESNET_152, OVERLAPPED] < 3
    assert gains[VGG, OVERLAPPED] == pytest.approx(3.3, abs=0.5)
    assert gains[VGG, DELAYED] < -10
    assert len(gains) == 6


def test_ranges_over_what_is_open_and_what_stands_beside_them_are_noted() -> None:
    check = dataclasses.replace(
        CHECK,
        tasks=TASKS,
        plans=tuple(map(GROPIPE.format, (1, 2, 4))),
        batches=(32, 64, 128),
        precisions=("fp32", "fp16"),
        alternatives=(DELAYED,),
        note="VGG-16 stands for the series",
    )
    evidence = project_grid(check)

    beside = f"{DELAYED} over {BLOCKING}"
    note, *ranges, last = evidence.notes
    assert note == "VGG-16 stands for the series"
    assert ranges == [
        f"{task} on rtx-2080ti: {low_to_high} times the base at 18 points; {beside}: {delayed}"
        for task, low_to_high, delayed in (
            (RESNET, "0.91 to 1.54", "1.12 to 1.92"),
            (RESNET_152, "1.01 to 1.62", "1.10 to 1.83"),
            (VGG, "1.03 to 1.82", "1.21 to 1.94"),
        )
    ]
    assert "does not identify" in last
    assert {each.conditions["micro-batches"] for each in evidence.readings} == {"1", "2", "4"}
    large = [
        each for each in evidence.readings if each.conditions["memory of a device"] != "enough"
    ]
    assert {each.conditions["task"] for each in large} == set(TASKS)


def test_conditions_name_what_is_open() -> None:
    (reading,) = _readings()

    assert dict(reading.conditions) == {
        "system": "rtx-2080ti",
        "precision": "fp32",
        "samples on a device": "32",
        "stages": "2",
        "micro-batches": "1",
        "base": BLOCKING,
        "memory of a device": "enough",
    }


def test_cuts_are_the_best_unless_the_plan_states_them() -> None:
    assert _ratio() > _ratio(plans=(f"{ONE},cut=parameters",))
    assert _ratio() > _ratio(plans=(f"{ONE},cuts=3",))


def test_points_that_cannot_be_are_left_out_with_a_reason() -> None:
    evidence = project_grid(
        dataclasses.replace(
            CHECK, precisions=("tf32", "fp32"), plans=(ONE, "dp=2,pp=4,microbatches=1,flush=off")
        )
    )

    assert len(evidence.readings) == 1
    assert any(
        note == "left out, 2 of 4 points: NVIDIA GeForce RTX 2080 Ti has no peak in tf32"
        for note in evidence.notes
    )
    assert any(
        note.startswith("left out, 1 of 4 points: dp=2,pp=4,microbatches=1,flush=off: expected ")
        for note in evidence.notes
    )
    none = project_grid(dataclasses.replace(CHECK, precisions=("tf32",)))
    assert none.readings == ()
    assert none.lacks == (
        "no point of the grid can be projected: NVIDIA GeForce RTX 2080 Ti has no peak in tf32"
    )


def test_systems_are_compared_with_other_systems() -> None:
    readings = _readings(systems=("mlu370",), base_systems=("a100-sxm", "a100-pcie"))

    assert [each.conditions["system of the base"] for each in readings] == ["a100-sxm", "a100-pcie"]
    assert readings[0].value < readings[1].value
    error = accuracy_of("device model").nine_in_ten
    assert readings[0].low == pytest.approx(readings[0].value / (1 + error))


def test_memory_is_compared_without_an_interval() -> None:
    (reading,) = _readings(metric="memory_saving", plans=("dp=8,zero=3",), bases=(OVERLAPPED,))

    assert 0 < reading.value < 100
    assert (reading.low, reading.high) == (None, None)


def test_the_commands_of_a_reading_compute_it_alone(capsys: pytest.CaptureFixture[str]) -> None:
    (reading,) = _readings(tasks=("vgg/laptop",))

    steps_s = []
    for command in reading.command.split(" && "):
        program, *words = shlex.split(command)
        assert program == "hybridperf"
        assert main([*words, "--json"]) == 0
        steps_s.append(json.loads(capsys.readouterr().out)["current"]["step_s"])
    assert steps_s[1] / steps_s[0] == pytest.approx(reading.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"systems": ("rtx-2080",)}, "did you mean rtx-2080ti?"),
        ({"tasks": ("resnet/clustr",)}, "did you mean"),
        ({"plans": ("dp=8,stale=1",)}, "did you mean"),
    ],
)
def test_unknown_names_are_refused_in_a_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=r"expected .*, found ") as refused:
        _readings(**changes)

    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("identifier", "points"),
    [("G01", 144), ("G03", 24), ("G07", 16), ("G08", 36)],
)
def test_published_claims_have_readings_at_each_point(identifier: str, points: int) -> None:
    evidence = project_grid(_published(identifier))

    assert len(evidence.readings) == points
    assert not any("left out" in note for note in evidence.notes)


@pytest.mark.parametrize(("identifier", "value"), [("G04", 41.9), ("G05", 42.2), ("G06", 79.2)])
def test_gropipe_on_eight_a100_is_consistent_over_pcie(identifier: str, value: float) -> None:
    """Over NVLink ResNets are, too, in TF32 with few samples: passes have twice as many."""
    within = _consistent(identifier, value)

    nvlink = [each for each in within if each["system"] == "a100-sxm"]
    assert len(within) > len(nvlink)
    assert all(
        (each["precision"], each["samples on a device"], each["micro-batches"])
        == ("tf32", "32", "1")
        for each in nvlink
    )
    assert bool(nvlink) == (identifier != "G06")


@pytest.mark.parametrize(("identifier", "value"), [("G11", 42.2), ("G12", 79.2)])
def test_the_means_of_gropipe_are_consistent_over_pcie_only(identifier: str, value: float) -> None:
    within = _consistent(identifier, value)

    assert {each["system"] for each in within} == {"rtx-2080ti", "v100-pcie", "a100-pcie"}


def _consistent(identifier: str, value: float) -> list[dict[str, str]]:
    """Return the conditions of points with two stages whose intervals have ``value``."""
    check = _published(identifier)
    plans = tuple(plan for plan in check.plans if "pp=2" in plan)
    alone = dataclasses.replace(check, plans=plans, strongest=(), alternatives=())
    return [
        dict(each.conditions)
        for each in project_grid(alone).readings
        if each.low is not None and each.high is not None and each.low < value < each.high
    ]


def _published(identifier: str) -> ProjectCheck:
    """Return the check of a published claim by projection."""
    rows: list[dict[str, Any]] = [
        row
        for path in (ROOT / "claims").glob("*.toml")
        for row in tomllib.loads(path.read_text(encoding="utf-8"))["claim"]
    ]
    (table,) = (row["check"] for row in rows if row["id"] == identifier)
    assert table.pop("kind") == "project"
    return build(ProjectCheck, table, path=identifier)


def test_the_files_have_the_claims_of_their_sources() -> None:
    found = {
        path.stem: [row["id"] for row in tomllib.loads(path.read_text(encoding="utf-8"))["claim"]]
        for path in (ROOT / "claims").glob("*.toml")
    }

    for name, letter, count in (
        ("gropipe", "G", 13),
        ("colossal_ai_vit", "C", 8),
        ("colossal_ai_launch", "K", 9),
        ("lv", "L", 3),
    ):
        assert found[name] == [f"{letter}{number:02}" for number in range(1, count + 1)]
