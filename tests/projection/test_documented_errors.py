"""The tables of docs/projection.md hold what the code computes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from hybridperf.projection.comparisons import projected_ratio, published_comparisons
from hybridperf.projection.device import device_throughput, published_devices
from hybridperf.projection.units import load_units
from hybridperf.system.catalog import known_accelerators

PAGE: Final = Path(__file__).parents[2] / "docs/projection.md"


def test_the_table_of_devices_is_what_the_model_gives() -> None:
    devices = {device.name: device for device in known_accelerators()}
    text = PAGE.read_text(encoding="utf-8")

    for one in published_devices():
        units = load_units(one.task)
        rate = device_throughput(devices[one.device], units, one.precision, one.batch)
        model, error = one.task.partition("/")[0], rate / one.samples_per_s - 1
        row = (
            f"| {one.device} | {model} | {one.precision} | {one.batch} "
            f"| {one.samples_per_s:,.0f} | {rate:,.0f} | {error:+.0%}"
        )
        assert f"{row}{', set by it' if one.sets else ''} |\n" in text


def test_the_table_of_comparisons_is_what_is_projected() -> None:
    text = PAGE.read_text(encoding="utf-8")

    for one in published_comparisons():
        ratio = projected_ratio(one)
        row = (
            f"| {one.name} | `{one.plan}` over `{one.base_plan}` "
            f"| {one.published:.2f} | {ratio:.2f} | {ratio / one.published - 1:+.0%} |\n"
        )
        assert row in text
