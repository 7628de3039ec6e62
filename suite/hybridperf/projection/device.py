"""Model the times of a task's units on a device of the catalogue.

The forward pass of a unit over b samples takes::

    t(b) = b (max(F / A, E / B) + E / B) + n l

with F its FLOPs for a sample, E the bytes of the activations that it keeps, A and B the FLOP/s and
bytes/s that the device achieves. Matrix products and convolutions come first, limited by arithmetic
or by the memory that they write to, then normalisation and activation functions, which read and
write memory alone. Each of its n layers adds a constant l (small kernels and their
launches), by the device's generation and the precision. A backward pass takes twice as long.
``devices.toml`` has the shares of peaks and l, with sources.
"""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass, field
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import msgspec

from hybridperf.errors import UserError
from hybridperf.projection.units import UnitTimes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hybridperf.projection.units import UnitCounts, UnitTable, UnitTiming
    from hybridperf.system.catalog import Accelerator

__all__ = [
    "OTHER_TASKS",
    "DeviceRates",
    "LayerOverhead",
    "PeakShares",
    "PublishedDevice",
    "SpeedFactor",
    "device_rates",
    "device_throughput",
    "device_timing",
    "half_batch",
    "published_devices",
]

_Positive: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
_Overhead: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e9)]

OTHER_TASKS: Final = "others"  #: as the task of a speed factor: all tasks without one

_FILE: Final = Path(__file__).with_name("devices.toml")
_TERA: Final = 1e12
_GIGA: Final = 1e9
_BYTES: Final = {"fp16": 2, "bf16": 2, "tf32": 4, "fp32": 4}  #: of an activation
_FP32_BYTES: Final = 4
_BACKWARD: Final = 2  #: gradients of inputs and of weights
#: bytes moved for a parameter by Adam and LAMB: weight, gradient and two averages, three written
_UPDATE_BYTES: Final = 7 * _FP32_BYTES
_LOSS_PASSES: Final = 4  #: over the outputs, softmax and its gradient included
#: layers with weights of a unit, by the beginning of its name: encoder layers and blocks; others 1
_LAYERS: Final = {"layers": 6, "layer1": 3, "layer2": 3, "layer3": 3, "layer4": 3}


class PublishedDevice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The published throughput of one device, which the model is compared with."""

    device: str  #: the catalogue's name
    task: str
    precision: str
    batch: int
    samples_per_s: float
    source: str
    sets: str = ""  #: the share that was set by it; "" if it only shows the model's error


class PeakShares(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Shares of a device's peaks that training achieves."""

    arithmetic: _Positive  #: share of the FLOP/s of matrix units: all number formats but fp32
    arithmetic_fp32: _Positive
    memory: _Positive  #: share of the bytes/s


class LayerOverhead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Overhead of the forward pass of a layer on the devices of a generation, in microseconds."""

    devices: tuple[str, ...]  #: names in the catalogue of accelerators
    half_us: _Overhead  #: overhead in 16 bits
    single_us: _Overhead  #: overhead in 32 bits
    source: str


class SpeedFactor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Factor of the rates of arithmetic and memory that training of a task achieves."""

    task: str  #: name of the task, or `OTHER_TASKS`
    factor: _Positive
    source: str


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """Rates that a device achieves: shares of its peaks, and the overhead of a layer."""

    shares: PeakShares
    layer: LayerOverhead
    speeds: Mapping[str, float] = field(default_factory=dict)  #: factors of the shares by task

    def speed(self, task: str) -> float:
        """Return the factor of the shares for ``task``."""
        return self.speeds.get(task, self.speeds.get(OTHER_TASKS, 1.0))


def device_rates(
    device: str,
    shares: PeakShares | None = None,
    layers: Sequence[LayerOverhead] = (),
    speeds: Sequence[SpeedFactor] = (),
) -> DeviceRates:
    """Return the rates of the device of this name.

    ``shares``, ``layers`` and ``speeds`` replace the catalogue's, where they are given.
    """
    catalogue = _tables()
    rows = {name: row for row in (*catalogue.layer, *layers) for name in row.devices}
    return DeviceRates(
        shares=shares or catalogue.achieved,
        layer=rows.get(device, rows["others"]),
        speeds={each.task: each.factor for each in speeds},
    )


def device_timing(
    device: Accelerator, units: UnitTable, precision: str, rates: DeviceRates | None = None
) -> UnitTiming:
    """Return the times of ``units`` on ``device`` in ``precision``, at the catalogue's ``rates``.

    Raises:
        UserError: exit status 2 if the catalogue has no peak of ``device`` in ``precision``.
    """
    peak = device.peak_tflops.get(precision)
    if peak is None or device.memory_gb_per_s is None:
        known = ", ".join(each for each in device.peak_tflops if each in _BYTES)
        expected = f"a precision that {device.name} has a peak of: {known}"
        remedy = "choose another with --precision"
        raise UserError.of("projection.precision", expected, precision, remedy)
    rates = rates or device_rates(device.name)
    achieved = rates.shares
    arithmetic = achieved.arithmetic_fp32 if precision == "fp32" else achieved.arithmetic
    speed = rates.speed(units.task)
    flops_per_s = peak * _TERA * arithmetic * speed
    bytes_per_s = device.memory_gb_per_s * _GIGA * achieved.memory * speed
    sample_s = []
    for unit in units.units:
        memory_s = unit.kept_elements * _BYTES[precision] / bytes_per_s
        sample_s.append(max(unit.forward_flops / flops_per_s, memory_s) + memory_s)
    is_half = _BYTES[precision] < _FP32_BYTES
    layer_s = (rates.layer.half_us if is_half else rates.layer.single_us) / 1e6
    layers_s = [_layers(unit) * layer_s for unit in units.units]
    loss_bytes = _LOSS_PASSES * units.units[-1].output_elements * _FP32_BYTES
    single = device.peak_tflops.get("fp32", peak)
    codec_flop_s = 1 / (single * _TERA * achieved.arithmetic_fp32 * speed)
    update_s = tuple(unit.parameters * _UPDATE_BYTES / bytes_per_s for unit in units.units)

    def times(microbatch: int) -> UnitTimes:
        forward_s = tuple(map(add, (microbatch * each for each in sample_s), layers_s))
        return UnitTimes(
            microbatch=microbatch,
            forward_s=forward_s,
            backward_s=tuple(_BACKWARD * each for each in forward_s),
            loss_s=microbatch * loss_bytes / bytes_per_s,
            update_s=update_s,
            codec_byte_s=1 / bytes_per_s,
            codec_flop_s=codec_flop_s,
        )

    return times


def device_throughput(device: Accelerator, units: UnitTable, precision: str, batch: int) -> float:
    """Return the samples/s of one device that trains on whole batches of ``batch`` samples.

    Raises:
        UserError: as `device_timing`.
    """
    times = device_timing(device, units, precision)(batch)
    passes_s = sum(times.forward_s) + sum(times.backward_s) + times.loss_s
    return batch / (passes_s + sum(times.update_s))


def half_batch(timing: UnitTiming) -> float:
    """Return the samples of a micro-batch at which a device reaches half of its peak samples/s.

    Their passes take as long as the overhead of the layers.
    """
    one, two = (sum(times.forward_s) + sum(times.backward_s) for times in map(timing, (1, 2)))
    return (2 * one - two) / (two - one)


def published_devices() -> tuple[PublishedDevice, ...]:
    """Return published throughputs of single devices."""
    return _tables().published


def _layers(unit: UnitCounts) -> int:
    """Return the number of layers with weights."""
    return _LAYERS.get(unit.name.partition(".")[0], 1)


class _Tables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All tables of ``devices.toml``."""

    achieved: PeakShares
    layer: tuple[LayerOverhead, ...]
    published: tuple[PublishedDevice, ...]


@functools.cache
def _tables() -> _Tables:
    return msgspec.convert(tomllib.loads(_FILE.read_text(encoding="utf-8")), _Tables)
