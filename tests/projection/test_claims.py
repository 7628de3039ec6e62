"""What published claims of speed rest on, reproduced by projections of the full-size models."""

from __future__ import annotations

from typing import Final

import pytest

from hybridperf.projection.device import device_timing
from hybridperf.projection.network import all_reduce
from hybridperf.projection.systems import find_system
from hybridperf.projection.units import load_units
from studies.curves.ratios import (
    PublishedRatio,
    project_on,
    projected_ratio,
    published_comparisons,
)

RESNET, RESNET_152, VGG = "resnet50/cluster", "resnet152/cluster", "vgg/cluster"
#: system, precision and samples on each of 8 devices
NVLINK, PCIE, OLD_PCIE = (
    ("a100-sxm", "fp16", 64),
    ("a100-pcie", "fp16", 64),
    ("v100-pcie", "fp32", 32),
)
BLOCKING, OVERLAPPED, DELAYED = "dp=8,sync=blocking", "dp=8", "dp=8,staleness=1"
#: a pipeline in each group, with and without a flush in each step
GROPIPE: Final = tuple(
    f"dp={8 // stages},pp={stages},microbatches={count},staleness=1,flush=off"
    for stages in (2, 4)
    for count in (1, 2, 4, 8)
)
FLUSHED: Final = tuple(plan.removesuffix(",staleness=1,flush=off") for plan in GROPIPE)

Place = tuple[str, str, int]


def _step_s(place: Place, task: str, *plans: str) -> float:
    """Return the step of the fastest of ``plans``."""
    system, precision, samples = place
    return min(project_on(system, task, precision, plan, 8 * samples).step_s for plan in plans)


def _gain(place: Place, task: str, *plans: str) -> float:
    """Return the gain over data parallelism that waits for its all-reduce."""
    return _step_s(place, task, BLOCKING) / _step_s(place, task, *plans) - 1


def _bound(place: Place, task: str) -> float:
    """Return seconds of the all-reduce over those of computing: what hiding it can gain."""
    system, precision, samples = find_system(place[0]), place[1], place[2]
    units = load_units(task)
    times = device_timing(system.device, units, precision)(samples)
    computing_s = sum(times.forward_s) + sum(times.backward_s) + times.loss_s
    return all_reduce(4 * units.parameters, system.network.group(8, 1)).seconds / computing_s


@pytest.mark.parametrize("task", [RESNET, RESNET_152, VGG])
@pytest.mark.parametrize("place", [NVLINK, PCIE, OLD_PCIE], ids=lambda place: place[0])
def test_delaying_the_all_reduce_without_a_pipeline_gains_what_can_be_gained(
    place: Place, task: str
) -> None:
    bound = _bound(place, task)

    gain = _gain(place, task, DELAYED)

    assert 0.85 * bound < gain <= bound


@pytest.mark.parametrize("task", [RESNET, RESNET_152, VGG])
@pytest.mark.parametrize("place", [NVLINK, PCIE, OLD_PCIE], ids=lambda place: place[0])
def test_a_pipeline_makes_the_delay_slower_with_one_exception(place: Place, task: str) -> None:
    delayed_s = _step_s(place, task, DELAYED)

    longer = {plan: _step_s(place, task, plan) / delayed_s - 1 for plan in GROPIPE}

    # Half the stages have twice the samples in a pass, whose layers take as long beside them.
    faster = longer.pop(GROPIPE[0])
    assert (faster < 0) == ((place, task) == (OLD_PCIE, RESNET_152))
    assert faster > -0.05
    assert min(longer.values()) > 0.005


@pytest.mark.parametrize("task", [RESNET, RESNET_152])
@pytest.mark.parametrize("place", [NVLINK, PCIE, OLD_PCIE], ids=lambda place: place[0])
def test_overlap_alone_gives_resnets_what_delay_does(place: Place, task: str) -> None:
    overlapped, delayed = _step_s(place, task, OVERLAPPED), _step_s(place, task, DELAYED)

    assert delayed <= overlapped < 1.03 * delayed


def test_vgg_overlaps_badly_because_most_of_its_gradients_are_those_of_one_layer() -> None:
    units = load_units(VGG)
    first = next(unit for unit in units.units if unit.name == "fc1")

    assert first.parameters / units.parameters == pytest.approx(0.74, abs=0.01)
    assert first.forward_flops / units.forward_flops < 0.01
    assert _gain(PCIE, VGG, OVERLAPPED) < 0.55 * _gain(PCIE, VGG, DELAYED)
    # ViT's gradients, of equal layers, are hidden.
    assert _gain(PCIE, "vit/cluster", OVERLAPPED) > 0.85 * _gain(PCIE, "vit/cluster", DELAYED)


def test_over_nvlink_little_can_be_gained() -> None:
    assert _bound(NVLINK, RESNET) < 0.05
    assert _bound(NVLINK, VGG) < 0.10


@pytest.mark.parametrize("place", [NVLINK, PCIE, OLD_PCIE], ids=lambda place: place[0])
@pytest.mark.parametrize("count", [4, 8])
def test_a_flush_in_each_step_loses_what_the_groups_gain(place: Place, count: int) -> None:
    def gain(task: str, plans: tuple[str, ...]) -> float:
        return _gain(place, task, *(plan for plan in plans if f"microbatches={count}" in plan))

    assert gain(VGG, FLUSHED) < 0
    assert gain(VGG, GROPIPE) > (-0.05 if place == NVLINK else 0)  # where there is little to gain
    for task in (RESNET, RESNET_152, VGG):
        assert gain(task, FLUSHED) < gain(task, GROPIPE)


def test_most_weights_of_vgg_are_in_the_last_stage() -> None:
    projection = project_on("a100-pcie", VGG, "fp16", GROPIPE[2], 512)
    last = load_units(VGG).units[projection.cuts[-1] :]

    assert sum(unit.parameters for unit in last) / load_units(VGG).parameters > 0.94


@pytest.mark.parametrize("count", [2, 4, 8, 16, 32])
def test_no_delayed_step_is_shorter_than_what_its_ranks_compute(count: int) -> None:
    # Averages of the last stage take longer than a few micro-batches, not longer than all.
    plan = f"dp=4,pp=2,microbatches={count},staleness=1"
    for each in (plan, f"{plan},flush=off"):
        projection = project_on("a100-pcie", VGG, "fp16", each, 512)

        assert projection.step_s >= max(projection.busy_s)
        assert min(projection.exposed_s) >= 0


@pytest.mark.parametrize("comparison", published_comparisons(), ids=lambda each: each.name)
def test_published_comparisons_are_projected(comparison: PublishedRatio) -> None:
    error = projected_ratio(comparison) / comparison.published - 1

    on_servers = comparison.system.endswith("-sxm")
    assert abs(error) < (0.20 if on_servers else 0.45)
    if on_servers and comparison.batch < 4096:  # up to 64 devices
        assert abs(error) < 0.05
