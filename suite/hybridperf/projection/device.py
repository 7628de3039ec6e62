"""Model how long the units of a task take on a device of the catalogue.

The forward pass of a unit over b samples takes::

    t(b) = b (max(F / A, E / B) + E / B) + n l

with F its FLOPs for a sample, E the bytes of the activations that it keeps, A and B the FLOP/s and
bytes/s that the device achieves. Matrix products and convolutions come first, limited by arithmetic
or by the memory that they write to, then normalisation and activation functions, which read and
write memory alone. Each of its n layers takes l beside (kernels too small for the device, their
launches), by the device's generation and the precision. A backward pass takes twice as long.
``devices.toml`` has the shares of peaks and l, with sources.
"""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding
from hybridperf.projection.units import UnitTimes
from hybridperf.tasks.schema import build, build_rows

if TYPE_CHECKING:
    from hybridperf.projection.units import Unit, UnitTable, UnitTiming
    from hybridperf.system.catalog import Accelerator

__all__ = ["PublishedDevice", "device_throughput", "device_timing", "published_devices"]

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


@dataclass(frozen=True, slots=True)
class PublishedDevice:
    """The published throughput of one device, which the model is compared with."""

    device: str  #: the catalogue's name
    task: str
    precision: str
    batch: int
    samples_per_s: float
    source: str
    sets: str = ""  #: the share that was set by it; "" if it only shows the model's error


@dataclass(frozen=True, slots=True)
class _Achieved:
    """What devices achieve of their peaks."""

    arithmetic: float
    arithmetic_fp32: float
    memory: float


@dataclass(frozen=True, slots=True)
class _Layer:
    """What passes of a layer take beside their samples, on the devices of a generation."""

    devices: tuple[str, ...]
    half_us: float  #: in 16 bits
    single_us: float  #: in 32 bits
    source: str


def device_timing(device: Accelerator, units: UnitTable, precision: str) -> UnitTiming:
    """Return how long ``units`` take on ``device``, computing in ``precision``.

    Raises:
        UserError: exit status 2 if the catalogue has no peak of ``device`` in ``precision``.
    """
    peak = device.peak_tflops.get(precision)
    if peak is None or device.memory_gb_per_s is None:
        known = ", ".join(each for each in device.peak_tflops if each in _BYTES)
        found = Finding(
            "projection.precision",
            f"a precision that {device.name} has a peak of: {known}",
            precision,
            "choose another with --precision",
        )
        raise UserError(found, ExitCode.USAGE)
    achieved = _achieved()
    arithmetic = achieved.arithmetic_fp32 if precision == "fp32" else achieved.arithmetic
    flops_per_s = peak * _TERA * arithmetic
    bytes_per_s = device.memory_gb_per_s * _GIGA * achieved.memory
    sample_s = []
    for unit in units.units:
        memory_s = unit.kept_elements * _BYTES[precision] / bytes_per_s
        sample_s.append(max(unit.forward_flops / flops_per_s, memory_s) + memory_s)
    layer_s = _layer_s(device.name, precision)
    layers_s = [_layers(unit) * layer_s for unit in units.units]
    loss_bytes = _LOSS_PASSES * units.units[-1].output_elements * _FP32_BYTES
    single = device.peak_tflops.get("fp32", peak)
    codec_flop_s = 1 / (single * _TERA * achieved.arithmetic_fp32)
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


@functools.cache
def published_devices() -> tuple[PublishedDevice, ...]:
    """Return published throughputs of single devices."""
    rows = tomllib.loads(_FILE.read_text(encoding="utf-8"))["published"]
    return build_rows(PublishedDevice, rows, path=_FILE.name, at="published")


def _layers(unit: Unit) -> int:
    """Return the number of layers with weights."""
    return _LAYERS.get(unit.name.partition(".")[0], 1)


def _layer_s(device: str, precision: str) -> float:
    """Return the seconds of a layer's forward pass beside its samples."""
    rows = {name: row for row in _layer_rows() for name in row.devices}
    row = rows.get(device, rows["others"])
    return (row.half_us if _BYTES[precision] < _FP32_BYTES else row.single_us) / 1e6


@functools.cache
def _layer_rows() -> tuple[_Layer, ...]:
    rows = tomllib.loads(_FILE.read_text(encoding="utf-8"))["layer"]
    return build_rows(_Layer, rows, path=_FILE.name, at="layer")


@functools.cache
def _achieved() -> _Achieved:
    table = tomllib.loads(_FILE.read_text(encoding="utf-8"))["achieved"]
    return build(_Achieved, table, path=_FILE.name, at="achieved")
