"""Profiles of this machine: measured by ranks, cached, and measured anew when stale."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from hybridperf.errors import ExitCode, UserError
from hybridperf.projection.profile import Profile
from hybridperf.projection.units import UnitTimes
from hybridperf.run import profiles
from hybridperf.run.profiles import cache_folder, cached_profile, measure_profile
from hybridperf.system.noise import Noise
from hybridperf.tasks.registry import find_task, task_path

TASK = "vit/laptop"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def others(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the shares of the processors that others use in each attempt; the last one stays."""
    shares = [0.0]

    class Meter:
        def read(self) -> Noise:
            return Noise(others=shares.pop(0) if len(shares) > 1 else shares[0], steal=0)

    monkeypatch.setattr(profiles, "NoiseMeter", Meter)
    return shares


def test_a_profile_of_two_ranks_is_measured_and_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "_LARGEST", 2)  # samples, so that it takes no time
    monkeypatch.setattr(profiles, "_STEPS", 2)

    profile = measure_profile(task_path(TASK), 2)

    assert profile.unit_names == find_task(TASK).units
    assert [times.microbatch for times in profile.unit_times] == [1, 2]
    assert min(min(t.forward_s + t.backward_s + t.update_s) for t in profile.unit_times) > 0
    sizes = {each.kind: len(each.times) for each in profile.transfers}
    assert sizes == dict.fromkeys(("send", "all_reduce", "reduce_scatter", "all_gather"), 7)
    assert profile.network().inside.bytes_per_s > 1e6
    assert 0 <= profile.pass_s < 1
    assert 0 < profile.bucket_s < 1
    assert profile.input_s > 0
    assert profile.contention > 0
    assert 0 <= profile.averaging_work < 10
    assert cached_profile(find_task(TASK), 2) == profile

    monkeypatch.setattr(profiles, "_measure", None)  # to be called no more
    assert measure_profile(task_path(TASK), 2) == profile


def test_a_profile_that_others_disturb_is_measured_again(
    others: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiles, "_measure", _fixed)
    others[:] = [0.43, 0.05]
    said: list[str] = []

    measure_profile(task_path(TASK), 1, say=said.append)

    assert said == [
        "vit/laptop: measuring units and links on 1 ranks, for up to minutes",
        "vit/laptop: other processes used 43% of the processors meanwhile",
        "vit/laptop: measuring units and links on 1 ranks, for up to minutes, attempt 2 of 3",
    ]
    assert cached_profile(find_task(TASK), 1) is not None


def test_a_busy_machine_is_refused_unless_told_and_never_cached(
    others: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiles, "_measure", _fixed)
    others[:] = [0.9, 0.8, 0.7]

    with pytest.raises(UserError) as refused:
        measure_profile(task_path(TASK), 1)

    assert refused.value.exit_code is ExitCode.ENVIRONMENT
    assert str(refused.value) == (
        "vit/laptop: expected other processes to use at most 10% of the processors while units "
        "are measured, found 70% in the last of 3 attempts; end them, or name a plan or a "
        "--system; hybridperf plan --busy uses such a profile."
    )
    assert measure_profile(task_path(TASK), 1, busy_too=True) == _fixed()
    assert cached_profile(find_task(TASK), 1) is None


def test_a_profile_is_measured_again_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "_measure", _fixed)
    measure_profile(task_path(TASK), 1)
    newer = dataclasses.replace(_fixed(), date="2026-02-03T04:05:06+00:00")
    monkeypatch.setattr(profiles, "_measure", lambda *_: newer)

    assert measure_profile(task_path(TASK), 1).date == _fixed().date
    assert measure_profile(task_path(TASK), 1, remeasure=True).date == newer.date
    kept = cached_profile(find_task(TASK), 1)
    assert kept is not None
    assert kept.date == newer.date


@pytest.mark.parametrize("fact", ["torch", "processor", "trainer_sha256", "task_sha256"])
def test_a_profile_made_with_something_else_is_stale(
    fact: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiles, "_measure", _fixed)
    task = find_task(TASK)
    measure_profile(task_path(TASK), 1)
    assert cached_profile(task, 1) is not None
    assert cached_profile(task, 1, "bf16") is None

    place = next(cache_folder().glob("profiles/*.json"))
    table = json.loads(place.read_text())
    table["made_with"][fact] = "another"
    place.write_text(json.dumps(table))

    assert cached_profile(task, 1) is None


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b'{"task": NaN}'])
def test_a_damaged_cache_is_measured_anew(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "_measure", _fixed)
    profile = measure_profile(task_path(TASK), 1)
    next(cache_folder().glob("profiles/*.json")).write_bytes(content)

    assert cached_profile(find_task(TASK), 1) is None
    assert measure_profile(task_path(TASK), 1) == profile


def test_a_trainer_that_cannot_profile_is_named(tmp_path: Path) -> None:
    text = task_path(TASK).read_text().replace('"hybridperf_reference"', '"hybridperf.spelling"')
    path = tmp_path / "task.toml"
    path.write_text(text)

    with pytest.raises(UserError, match=r"hybridperf\.spelling\.profile") as caught:
        measure_profile(path, 1)

    assert caught.value.exit_code is ExitCode.ENVIRONMENT
    assert "\n" not in str(caught.value)


def test_the_cache_is_where_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == Path("~/.cache/hybridperf").expanduser()
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/hybridperf")


def _fixed(*_: object) -> Profile:
    """Return a profile that nobody measured."""
    units = find_task(TASK).units
    seconds = (1e-3,) * len(units)
    return Profile(
        task=TASK,
        precision="fp32",
        ranks=1,
        threads=1,
        library="gloo",
        date="2026-01-02T03:04:05+00:00",
        unit_names=units,
        unit_times=(UnitTimes(1, seconds, seconds, 1e-3, seconds),),
        contention=1.0,
        transfers=(),
    )
