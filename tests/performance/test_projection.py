"""The driver that puts projected steps beside measured ones."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from hybridperf.projection.profile import Profile, Transfer
from hybridperf.projection.units import UnitTimes, load_units
from tests.performance.projection import ASKED, Pair, pairs_of, projected_s, table


def _profile(task: str) -> Profile:
    """Return a made-up profile: 1 ms forward and 2 ms backward in each unit, and fast links."""
    units = load_units(task).units
    each = (1e-3,) * len(units)
    times = UnitTimes(8, each, tuple(2 * one for one in each), 1e-4, (1e-4,) * len(units))
    return Profile(
        task=task,
        precision="fp32",
        ranks=2,
        threads=1,
        cores=2,
        library="gloo",
        date="2026-01-02T03:04:05+00:00",
        unit_names=tuple(unit.name for unit in units),
        unit_times=(times,),
        contention=1.0,
        transfers=tuple(
            Transfer(kind, 2, ((1000, 1e-6, 1e-6), (2000, 2e-6, 2e-6)))
            for kind in ("send", "all_reduce", "int8")
        ),
    )


def test_there_are_twelve_pairs_or_more_and_all_can_be_projected() -> None:
    tasks, plans = ASKED["tasks"], ASKED["plans"]

    found = [projected_s(plan, _profile(task)) for task in tasks for plan in plans]

    assert len(found) >= 12
    whole = [3e-3 * len(load_units(task).units) for task in tasks for _ in plans]
    # No less than half a step, and no more than all of the micro-batches one after another.
    assert all(0.5 * one < step < 8 * one for step, one in zip(found, whole, strict=True))


def test_steps_are_projected_from_every_profile() -> None:
    profile = _profile("vit/laptop")
    (times,) = profile.unit_times
    profiles = [
        json.loads(json.dumps(replace(profile, unit_times=(replace(times, loss_s=s),)).as_table()))
        for s in (1.0, 3.0, 2.0)
    ]

    (pair,) = pairs_of(
        "vit/laptop", ["dp=2"], {"profiles": profiles, "step_s": {"dp=2": [8.0, 2.0, 4.0]}}
    )

    assert pair.projected_s == pytest.approx(projected_s("dp=2", profile) + 2.0 - times.loss_s)
    assert pair.measured_s == 4.0


def test_the_table_states_the_median_of_starts_and_the_worst_error() -> None:
    first = [
        Pair("vit/laptop", "dp=2", 0.011, 0.010),
        Pair("vit/laptop", "pp=2", 0.007, 0.010),
        Pair("bert/laptop", "dp=2", 0.020, 0.020),
    ]
    second, third = (
        [replace(pair, projected_s=factor * pair.measured_s) for pair in first]
        for factor in (1.3, 0.8)
    )

    lines = table([first, second, third]).splitlines()

    assert lines[2] == "| vit/laptop | `dp=2` | 11.00 | 10.00 | +10.0% | -20.0%, +10.0%, +30.0% |"
    assert lines[3].startswith("| vit/laptop | `pp=2` | 8.00 | 10.00 | -20.0% |")
    assert lines[-1] == "Error: median 10.0%, worst 20.0% (3 pairs, 3 starts)."
    assert first[1].error == pytest.approx(-0.3)
