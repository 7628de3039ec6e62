"""The tables of docs/projection.md hold what the code computes."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

import pytest

from hybridperf.projection.device import device_throughput, published_devices
from hybridperf.projection.systems import accuracy_of
from hybridperf.projection.units import load_units
from hybridperf.system.catalog import known_accelerators
from studies.curves.ratios import projected_ratio, published_comparisons

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridperf.projection.systems import Accuracy

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


def _assert_is_of(accuracy: Accuracy, errors: Sequence[float]) -> None:
    """The catalogue states the errors, to three digits."""
    found = sorted(map(abs, errors))
    assert accuracy.results == len(found)
    assert accuracy.median == pytest.approx(median(found), abs=1e-3)
    assert accuracy.nine_in_ten == pytest.approx(found[math.ceil(0.9 * len(found)) - 1], abs=1e-3)
    assert accuracy.worst == pytest.approx(found[-1], abs=1e-3)


def test_the_accuracy_of_the_device_model_is_that_of_its_table() -> None:
    devices = {device.name: device for device in known_accelerators()}
    errors = [
        device_throughput(devices[one.device], load_units(one.task), one.precision, one.batch)
        / one.samples_per_s
        - 1
        for one in published_devices()
        if not one.sets
    ]

    _assert_is_of(accuracy_of("device model"), errors)


def test_the_errors_of_the_device_model_by_precision_are_what_it_gives() -> None:
    devices = {device.name: device for device in known_accelerators()}
    words, errors = {"fp32": "fp32", "tf32": "TF32"}, dict[str, list[float]]()
    for one in published_devices():
        if not one.sets:
            units = load_units(one.task)
            rate = device_throughput(devices[one.device], units, one.precision, one.batch)
            word = words.get(one.precision, "16 bits")
            errors.setdefault(word, []).append(rate / one.samples_per_s - 1)
    text = PAGE.read_text(encoding="utf-8")

    assert errors.keys() == {"fp32", "TF32", "16 bits"}
    for word, found in errors.items():
        size = sorted(map(abs, found))
        middle, worst = (f"{100 * each:.0f} %" for each in (median(size), size[-1]))
        ends = f"{min(found):+.0%} to {max(found):+.0%}"
        assert f"| {word} | {len(found)} | {middle} | {worst} | {ends} |\n" in text


def test_the_accuracy_of_two_plans_is_that_of_published_ratios() -> None:
    errors = [projected_ratio(one) / one.published - 1 for one in published_comparisons()]

    _assert_is_of(accuracy_of("two plans"), errors)


def test_the_accuracy_of_profiles_is_that_of_the_study() -> None:
    page = (PAGE.parents[1] / "studies/pairs/README.md").read_text(encoding="utf-8")
    rows = [line.split("|")[2:-1] for line in page.splitlines() if line.startswith("| `dp")]
    rows += [line.split("|")[2:-1] for line in page.splitlines() if line.startswith("| `pp")]
    accuracy = accuracy_of("profile")
    errors = sorted(abs(int(cell.strip().removesuffix(" %"))) / 100 for row in rows for cell in row)

    assert accuracy.results == len(errors)
    assert accuracy.worst == errors[-1]
    assert accuracy.nine_in_ten == errors[math.ceil(0.9 * len(errors)) - 1]
    assert accuracy.median == pytest.approx(median(errors), abs=5e-3)  # of rounded errors
