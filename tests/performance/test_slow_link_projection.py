"""What is projected over slow links: bounds that hold whatever a unit takes, and the tables."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from hybridperf.projection.profile import Profile, Transfer
from hybridperf.projection.runtime_work import RuntimeWork
from hybridperf.projection.units import UnitTimes, load_units
from tests.performance.slow_link_methods import METHODS, Record
from tests.performance.slow_link_projection import (
    _crossover_table,
    ladder,
    network,
    projected_step_s,
    projections,
)

if TYPE_CHECKING:
    from tests.performance.slow_link_methods import SlowLinkMethod

TASK = "vgg/laptop"
GRADIENT_BYTES = 4 * load_units(TASK).parameters
LINKS = {
    rate: {
        kind: [(count, fixed_s + count / bytes_per_s) for count in (2**13, 2**20, 2**22)]
        for kind, fixed_s in (("send", 1e-4 - burst_s), ("all_reduce", 2e-4))
    }
    for rate, bytes_per_s, burst_s in (
        (0.0, 1e9, 0.0),
        (4000.0, 465e6, 0.25e-3),
        (62.5, 62.5e6 / 8 * 0.93, 2**14 / (62.5e6 / 8)),
    )
}  #: of 0.1 ms latency, and 93 % of the rate; each message begins with a burst
BY_KEY = {method.key: method for method in METHODS}


def profile(sample_s: float = 0.4e-3) -> Profile:
    """Return times by FLOPs, of ``sample_s`` in all for one sample; communication is no work."""
    units = load_units(TASK).units
    whole = sum(unit.forward_flops for unit in units)
    times = []
    for microbatch in (1, 64):
        forward = tuple(sample_s / 3 * microbatch * unit.forward_flops / whole for unit in units)
        backward = tuple(2 * each for each in forward)
        times.append(UnitTimes(microbatch, forward, backward, 0.0, (0.0,) * len(units)))
    return Profile(
        task=TASK,
        precision="fp32",
        ranks=2,
        threads=1,
        cores=4,
        library="gloo",
        date="2026-01-02T03:04:05+00:00",
        unit_names=tuple(unit.name for unit in units),
        unit_times=tuple(times),
        contention=1.0,
        transfers=tuple(
            Transfer(kind, 2, ((2**10, 1e-4, 0.0), (2**20, 1e-3, 0.0)))
            for kind in ("send", "all_reduce")
        ),
    )


def test_links_have_the_burst_that_was_set_and_are_otherwise_fitted() -> None:
    found = network(profile(), 62.5, 4, LINKS)

    assert found.between is not None
    assert found.between_collectives is not None
    for link in (found.between, found.between_collectives):
        assert link.latency_s == pytest.approx(1e-4)
        assert link.bytes_per_s == pytest.approx(62.5e6 / 8 * 0.93)
        assert link.burst_bytes == pytest.approx(16384 * 1448 / 1514)
        assert link.shared_by == found.devices_per_node == 2
    assert found.inside.bytes_per_s == pytest.approx(1e9)
    assert found.inside.burst_bytes == 0


STEPS = 12  #: of a block


def step_s(
    method: SlowLinkMethod, rate_mbit_per_s: float, sample_s: float = 0.4e-3, steps: int = STEPS
) -> float:
    return projected_step_s(method, rate_mbit_per_s, profile(sample_s), 0.0, LINKS, steps)


def test_a_block_begins_and_ends_with_nothing_under_way() -> None:
    rate, message_s = 62.5, 2**16 / (62.5e6 / 8 * 0.93)

    extra_s = {
        key: STEPS * (step_s(BY_KEY[key], rate) - step_s(BY_KEY[key], rate, steps=10**6))
        for key in ("blocking", "pp", "2bw", "delayed")
    }

    for key in ("blocking", "pp"):
        assert extra_s[key] == pytest.approx(0, abs=1e-4)
    # The first message and the last one, which no pass hides.
    assert extra_s["2bw"] == pytest.approx(2 * message_s, rel=0.1)
    # The first step's passes, before there is anything to average.
    assert extra_s["delayed"] == pytest.approx(16 * 0.4e-3, rel=0.2)


@pytest.mark.parametrize(
    "key", ["blocking", "ddp", "delayed", "groups", "gropipe-flush", "gropipe"]
)
def test_no_plan_with_replicas_is_faster_than_its_gradients_pass_the_link(key: str) -> None:
    rate = 62.5
    least_s = GRADIENT_BYTES / (rate * 1e6 / 8 * 1448 / 1514)

    assert least_s < step_s(BY_KEY[key], rate) < 1.1 * least_s


@pytest.mark.parametrize("key", ["groups", "gropipe-flush", "gropipe"])
def test_ranks_that_share_a_processor_take_as_long_as_all_of_their_work(key: str) -> None:
    """Sixteen samples a machine, whether one rank computes them or two in turns."""
    own_s = 16 * 0.4e-3

    assert step_s(BY_KEY[key], 0) == pytest.approx(own_s, rel=0.6)
    assert step_s(BY_KEY[key], 0) > 0.99 * own_s
    # Where passes take long, what the link takes no longer counts.
    assert step_s(BY_KEY[key], 0, sample_s=1.0) == pytest.approx(16, rel=0.01)


def test_units_that_were_timed_in_turns_on_a_processor_count_once() -> None:
    """In a profile of four ranks a unit takes twice as long, and a step under four does not."""
    two = profile(sample_s=0.1)
    four = replace(profile(sample_s=0.2), ranks=4)

    seconds = [
        projected_step_s(BY_KEY["gropipe"], 0, each, 0.0, LINKS, STEPS) for each in (two, four)
    ]

    assert seconds[1] == pytest.approx(seconds[0], rel=0.01)


@pytest.mark.parametrize(("key", "passes"), [("pp", 6), ("2bw", 4), ("gropipe", 8)])
def test_what_runtimes_add_counts_once_for_each_rank_of_a_processor(key: str, passes: int) -> None:
    """The passes of a step that follow one another, of both stages where they share a processor."""
    plain = profile()
    runtimes = tuple(RuntimeWork(name, pass_s=1.0) for name in ("1f1b", "program"))
    slow = replace(plain, runtimes=runtimes)
    seconds = [projected_step_s(BY_KEY[key], 0, each, 0.0, LINKS, STEPS) for each in (plain, slow)]

    assert seconds[1] - seconds[0] == pytest.approx(passes, rel=0.1)


def test_reading_samples_counts_once_a_step() -> None:
    for key in ("blocking", "2bw"):
        without = projected_step_s(BY_KEY[key], 0, profile(), 0.0, LINKS, STEPS)
        reading = projected_step_s(BY_KEY[key], 0, profile(), 0.5, LINKS, STEPS)
        assert reading - without == pytest.approx(0.5, rel=0.02)


def test_errors_and_crossovers_stand_beside_each_other() -> None:
    records = [
        Record(
            TASK, rate, key, 0, 12, step_s(BY_KEY[key], rate) * factor, 0.0, (sent, sent), sent, 0.0
        )
        for key, factor, sent in (("pp", 1.0, 27_000), ("2bw", 1.25, 27_000))
        for rate in (62.5, 4000.0)
    ]
    records += [
        replace(record, method="ddp", sent_bytes=(3_300_000,) * 2, step_s=seconds)
        for record, seconds in zip(records[:2], (0.5, 0.001), strict=True)
    ]

    text = projections(records, {(TASK, 2, rate): [profile()] for rate in LINKS}, LINKS)

    rows = {
        (cells[1], cells[2]): cells[3:]
        for line in text.splitlines()
        if len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 7
    }
    assert rows["pipeline across the link", "62.5"][2] == "+0.0%"
    assert rows["PipeDream-2BW", "4000"][2] == "-20.0%"
    ddp_error = step_s(BY_KEY["ddp"], 62.5) / 0.5 - 1
    assert rows["DDP", "62.5"][2] == f"{ddp_error:+.1%}"
    # Busy for at least half: DDP at both rates, and no other.
    assert "(2 figures); of all:" in text
    assert "(6 figures)." in text
    assert "pipeline across the link over DDP" in text.rpartition("| task |")[2]


def test_a_ratio_is_projected_from_the_profile_of_each_repetition() -> None:
    # At 4,000 Mbit/s the medians of both, 3.0 and 3.2, say that the other one is faster.
    projected_s = {
        (TASK, 4000.0, "pp"): [1.0, 4.0, 3.0],
        (TASK, 4000.0, "ddp"): [0.8, 3.2, 3.6],
        (TASK, 62.5, "pp"): [1.0, 3.0, 3.0],
        (TASK, 62.5, "ddp"): [1.25, 3.75, 3.75],
    }

    text = _crossover_table([], projected_s, 10_000.0)

    (row,) = text.splitlines()[2:]
    assert row == f"| {TASK} | pipeline across the link over DDP | none | 500 (317 to 788) |  |  |"


def test_gradients_of_the_ladder_pass_the_link_of_a_machine() -> None:
    rows = {
        cells[1].partition(" (")[0]: [float(cell) for cell in cells[2:]]
        for line in ladder({(TASK, 2, rate): [profile()] for rate in LINKS}, LINKS).splitlines()
        if (cells := [cell.strip() for cell in line.strip("|").split("|")])[0] == TASK
    }

    least_ms = GRADIENT_BYTES / (62.5e6 / 8 * 0.93) * 1e3
    # A ring over four devices sends one and a half times the gradients, stages send theirs once.
    assert rows["delayed data parallelism"][-1] == pytest.approx(1.5 * least_ms, rel=0.02)
    assert rows["GroPipe with a flush"][-1] == pytest.approx(least_ms, rel=0.02)
    # Each step of the ladder leaves something out.
    assert rows["blocking data parallelism"][1] > rows["DDP"][1]
    assert rows["DDP"][1] > rows["delayed data parallelism"][1]
    assert (
        rows["pipelines in the machines, DDP between them"][-1] > rows["GroPipe with a flush"][-1]
    )
