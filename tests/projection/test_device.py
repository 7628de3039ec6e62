from __future__ import annotations

from statistics import median

import pytest

from hybridperf.errors import ExitCode, UserError
from hybridperf.projection.device import (
    device_throughput,
    device_timing,
    published_devices,
)
from hybridperf.projection.systems import find_system
from hybridperf.projection.units import UnitCounts, UnitTable, load_units
from hybridperf.system.catalog import known_accelerators
from tests.projection.tables import plain

DEVICES = {device.name: device for device in known_accelerators()}
A100 = DEVICES["NVIDIA A100 SXM 80 GB"]


def _units(flops: float, kept: int) -> UnitTable:
    unit = UnitCounts("conv", flops, plain(1000), output_elements=100, kept_elements=kept)
    return UnitTable("test/one", (unit,), input_elements=100)


def test_a_unit_takes_its_arithmetic_and_then_its_memory_and_what_layers_take() -> None:
    bytes_per_s = 0.49 * 2039e9
    memory_s = 1e6 * 2 / bytes_per_s
    compute_s = 1e10 / (0.52 * 312e12)

    times = device_timing(A100, _units(1e10, 10**6), "bf16")(8)

    assert times.microbatch == 8
    assert times.forward_s == pytest.approx([8 * (compute_s + memory_s) + 36e-6])
    assert times.backward_s == pytest.approx([2 * times.forward_s[0]])
    assert times.update_s == pytest.approx([1000 * 28 / bytes_per_s])
    assert times.loss_s == pytest.approx(8 * 4 * 100 * 4 / bytes_per_s)


def test_a_unit_that_is_limited_by_memory_takes_it_twice() -> None:
    units = _units(1e6, 10**6)
    half, whole = (device_timing(A100, units, precision)(32) for precision in ("bf16", "fp32"))

    memory_s = 1e6 * 2 / (0.49 * 2039e9)
    assert half.forward_s == pytest.approx([32 * 2 * memory_s + 36e-6])
    assert whole.forward_s == pytest.approx([32 * 4 * memory_s + 62e-6])  # twice the bytes


@pytest.mark.parametrize(
    ("device", "precision", "layer_us"),
    [
        ("NVIDIA A100 SXM 40 GB", "bf16", 36),
        ("NVIDIA V100 SXM", "fp16", 60),
        ("NVIDIA V100 SXM", "fp32", 68),
        ("NVIDIA T4", "fp16", 131),
        ("NVIDIA T4", "fp32", 113),
        ("NVIDIA H100 SXM", "bf16", 25),
        ("NVIDIA B200", "bf16", 33),
    ],
)
def test_layers_take_as_long_as_published_by_generation_and_precision(
    device: str, precision: str, layer_us: float
) -> None:
    timing = device_timing(DEVICES[device], load_units("resnet50/cluster"), precision)
    one, two = (sum(timing(samples).forward_s) for samples in (1, 2))

    assert 2 * one - two == pytest.approx(50 * layer_us / 1e6)  # of no samples


def test_half_batches_are_smaller_in_fp32_and_larger_on_newer_devices() -> None:
    """A half batch: the samples that take as long as what passes take beside them."""

    def half_batch(device: str, precision: str) -> float:
        timing = device_timing(DEVICES[device], load_units("resnet50/cluster"), precision)
        one, two = (sum(timing(samples).forward_s) for samples in (1, 2))
        return (2 * one - two) / (two - one)

    old, new = half_batch("NVIDIA A100 SXM 80 GB", "bf16"), half_batch("NVIDIA B200", "bf16")
    assert new > 1.5 * old
    for device in ("NVIDIA V100 SXM", "NVIDIA V100 PCIe"):
        assert half_batch(device, "fp32") < 0.5 * half_batch(device, "fp16")


def test_a_precision_that_a_device_does_not_have_is_refused() -> None:
    with pytest.raises(UserError, match="fp16, fp32") as refused:
        device_timing(DEVICES["NVIDIA V100 SXM"], _units(1.0, 1), "bf16")

    assert refused.value.exit_code is ExitCode.USAGE


def test_every_system_has_a_timing_for_the_full_models() -> None:
    for name in ("resnet50/cluster", "vgg/cluster", "vit/cluster", "bert_large/cluster"):
        for system in ("v100-pcie", "a100-sxm", "h100-sxm", "b200", "mi300x", "mlu370"):
            rate = device_throughput(find_system(system).device, load_units(name), "fp16", 32)

            assert 10 < rate < 50_000


def test_the_model_is_as_far_off_published_throughputs_as_documented() -> None:
    errors = {"set": [], "compared": []}  # type: dict[str, list[float]]
    for each in published_devices():
        units = load_units(each.task)
        rate = device_throughput(DEVICES[each.device], units, each.precision, each.batch)
        error = abs(rate / each.samples_per_s - 1)
        errors["set" if each.sets else "compared"].append(error)

    assert max(errors["set"]) < 0.05
    assert len(errors["compared"]) >= 17
    assert median(errors["compared"]) < 0.185
    assert max(errors["compared"]) < 0.48
