"""Profiles: read from JSON within limits, interpolated, and turned into links."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import pytest

from hybridperf.projection.network import all_reduce
from hybridperf.projection.profile import Profile, Transfer
from hybridperf.projection.units import UnitTimes

SIZES = [1024 * 4**power for power in range(6)]


def _times(microbatch: int, forward_s: float, update_s: float = 2e-3) -> UnitTimes:
    return UnitTimes(
        microbatch,
        forward_s=(forward_s, 2 * forward_s),
        backward_s=(3 * forward_s, 4 * forward_s),
        loss_s=forward_s / 10,
        update_s=(update_s, 0.0),
    )


def _profile(**changes: Any) -> Profile:
    sends = tuple((size, 20e-6 + size / 4e9) for size in SIZES)
    reduces = {
        ranks: tuple((size, 2 * (ranks - 1) * (50e-6 + size / ranks / 1e9)) for size in SIZES)
        for ranks in (2, 4)
    }
    profile = Profile(
        task="vit/laptop",
        precision="fp32",
        ranks=4,
        threads=1,
        library="gloo",
        date="2026-01-02T03:04:05+00:00",
        unit_names=("first", "second"),
        unit_times=(_times(1, 1e-3), _times(8, 3e-3), _times(32, 9e-3)),
        contention=1.1,
        transfers=(
            Transfer("send", 2, sends),
            Transfer("all_reduce", 2, reduces[2]),
            Transfer("all_reduce", 4, reduces[4]),
        ),
        made_with={"torch": "2.15.0"},
    )
    return dataclasses.replace(profile, **changes)


def test_a_profile_is_the_same_after_json() -> None:
    profile = _profile(input_s=1e-5, target_s=2e-6, pass_s=3e-4, bucket_s=1e-3)

    assert Profile.from_table(json.loads(json.dumps(profile.as_table()))) == profile


@pytest.mark.parametrize(
    ("microbatch", "forward_s"), [(1, 1e-3), (8, 3e-3), (20, 6e-3), (32, 9e-3), (64, 17e-3)]
)
def test_times_lie_on_lines_through_measured_ones(microbatch: int, forward_s: float) -> None:
    found = _profile().times(microbatch)

    assert found.microbatch == microbatch
    assert found.forward_s == pytest.approx((forward_s, 2 * forward_s))
    assert found.backward_s == pytest.approx((3 * forward_s, 4 * forward_s))
    assert found.loss_s == pytest.approx(forward_s / 10)
    assert found.update_s == (2e-3, 0.0)


def test_reading_counts_in_the_first_unit_and_the_loss() -> None:
    plain, reading = _profile().times(8), _profile(input_s=1e-5, target_s=2e-6).times(8)

    assert reading.forward_s == pytest.approx((plain.forward_s[0] + 8e-5, plain.forward_s[1]))
    assert reading.loss_s == pytest.approx(plain.loss_s + 1.6e-5)


def test_extrapolated_times_are_positive() -> None:
    steep = _profile(unit_times=(_times(8, 1e-4), _times(32, 9e-3)))

    assert min(steep.times(1).forward_s) > 0


@pytest.mark.parametrize("ranks", [2, 4])
def test_links_give_back_the_measured_times(ranks: int) -> None:
    profile = _profile()
    network = profile.network(ranks)

    assert network.inside.send_s(1e6) == pytest.approx(20e-6 + 1e6 / 4e9)
    found = all_reduce(1e6, network.group(ranks, 1)).seconds
    assert found == pytest.approx(2 * (ranks - 1) * (50e-6 + 1e6 / ranks / 1e9))


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("ranks", 0, "`int` >= 1 - at `$.ranks`"),
        ("ranks", True, "`int`, got `bool` - at `$.ranks`"),
        ("library", "mpi", "mpi' - at `$.library`"),
        ("task", "x" * 1001, "length <= 1000 - at `$.task`"),
        ("contention", "1", "`float`, got `str` - at `$.contention`"),
        ("unit_times", [], "unit_times: expected increasing micro-batches"),
        ("unit_times", [1], "`object`, got `int` - at `$.unit_times"),
        ("transfers", [], "transfers: expected sends and all-reduces"),
        ("unit_names", ["one"], "unit_times.forward_s: expected 1 numbers"),
        ("bucket_s", -1.0, "`float` >= 0.0 - at `$.bucket_s`"),
        ("made_with", {"torch": 2}, "`str`, got `int` - at `$.made_with"),
    ],
)
def test_wrong_values_are_refused_by_name(key: str, value: object, expected: str) -> None:
    table = json.loads(json.dumps(_profile().as_table())) | {key: value}

    with pytest.raises(ValueError, match=re.sub(r"[$\[]", r"\\\g<0>", expected)):
        Profile.from_table(table)


def test_a_profile_of_an_earlier_release_with_a_key_that_is_gone_is_read() -> None:
    table = json.loads(json.dumps(_profile().as_table()))

    assert Profile.from_table(table | {"cores": 2}) == _profile()


@pytest.mark.parametrize("key", [field.name for field in dataclasses.fields(Profile)])
def test_no_key_may_be_missing(key: str) -> None:
    table = json.loads(json.dumps(_profile().as_table()))
    del table[key]

    with pytest.raises(ValueError, match=key):
        Profile.from_table(table)


@pytest.mark.parametrize(
    "time", [[1], [8, 1.0, 0], [0, 1.0], [8, -1.0], [8, 0], ["8", 1.0], [8, "1"], 3]
)
def test_wrong_points_of_transfers_are_refused(time: object) -> None:
    table = json.loads(json.dumps(_profile().as_table()))
    table["transfers"][0]["times"][0] = time

    with pytest.raises(ValueError, match=r"times\[0\]"):
        Profile.from_table(table)
