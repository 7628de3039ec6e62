"""Compression takes time of the device, and stands first only where it saves more."""

from __future__ import annotations

import pytest

from hybridperf.cli.planning import setting_of
from hybridperf.plan import ParallelPlan
from hybridperf.projection.device import device_timing
from hybridperf.projection.systems import find_system
from hybridperf.projection.traffic import Stages, link_codec_s
from hybridperf.projection.units import load_units
from hybridperf.tasks.registry import read_task, resolve_task
from studies.curves.ratios import project_on

SAMPLES = {"resnet50/cluster": 64, "vgg/cluster": 64, "vit/cluster": 64, "bert_large/cluster": 16}


@pytest.mark.parametrize("system", ["a100-sxm", "h100-sxm"])
@pytest.mark.parametrize("task", SAMPLES)
def test_powersgd_takes_longer_where_links_are_fast(task: str, system: str) -> None:
    """Measured steps take 1.03 to 1.42 times those of data parallelism without it."""
    plain_s, compressed_s = (
        project_on(system, task, "bf16", plan, 8 * SAMPLES[task]).step_s
        for plan in ("dp=8", "dp=8,gradients=powersgd")
    )
    assert 1.03 < compressed_s / plain_s < 1.42


def test_powersgd_takes_less_where_links_are_slow() -> None:
    steps_s = [
        project_on("rtx-3090", "vgg/cluster", "bf16", plan, 512).step_s
        for plan in ("dp=8", "dp=8,gradients=powersgd")
    ]
    assert steps_s[1] < 0.7 * steps_s[0]


@pytest.mark.parametrize(
    ("task", "system", "precision"),
    [
        ("bert_large/cluster", "rtx-4090", "bf16"),
        ("bert_large/cluster", "a100-sxm", "bf16"),
        ("resnet50/cluster", "a100-sxm", "bf16"),
        ("vgg/cluster", "a100-sxm", "bf16"),
        ("vgg/cluster", "rtx-2080ti", "fp32"),  # a delay hides all averages
        ("resnet152/cluster", "v100-pcie", "fp32"),
    ],
)
def test_compression_that_buys_nothing_does_not_stand_first(
    task: str, system: str, precision: str
) -> None:
    path = resolve_task(task)
    setting = setting_of(path, read_task(path), system=system, devices=8, precision=precision)

    ranking = setting.ranking("other", 3)

    first = ranking.best[0].plan
    assert (first.gradients, first.links) == ("fp32", "none")
    assert all(setting.work.gains(each) for each in ranking.best)


def test_a_stage_encodes_what_it_sends_and_decodes_what_it_receives() -> None:
    system, units = find_system("a100-sxm"), load_units("vgg/cluster")
    times = device_timing(system.device, units, "bf16")(4)
    plan = ParallelPlan.parse("pp=3,microbatches=4,links=int8,precision=bf16")
    stages = Stages(plan, units, (3, 8))
    sent_s = [
        4 * units.units[last].output_elements / (0.49 * 2039e9) for last in (2, 7)
    ]  # of a byte for each number

    found = [link_codec_s(plan, times, stages, stage) for stage in range(3)]

    assert found == [
        pytest.approx((83 * sent_s[0], 13 * sent_s[0])),
        pytest.approx((13 * sent_s[0] + 83 * sent_s[1], 83 * sent_s[0] + 13 * sent_s[1])),
        pytest.approx((13 * sent_s[1], 83 * sent_s[1])),
    ]
