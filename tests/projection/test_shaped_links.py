"""Links behind a token bucket, and adapters that unequal stages share."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hybridperf.plan import ParallelPlan
from hybridperf.projection.collectives import all_reduce
from hybridperf.projection.link import Group, Link, Network
from hybridperf.projection.project import project
from hybridperf.projection.simulate import Hop, simulate
from hybridperf.projection.units import Unit, UnitTable, UnitTimes
from tests.projection.simulated import costs_of, programs_of
from tests.projection.tables import plain

SLOW = Link(latency_s=0.5, bytes_per_s=10.0, burst_bytes=20.0)


@pytest.mark.parametrize(("message_bytes", "seconds"), [(5, 0.5), (20, 0.5), (50, 3.5)])
def test_a_message_is_slowed_down_by_what_exceeds_the_burst(
    message_bytes: float, seconds: float
) -> None:
    assert SLOW.send_s(message_bytes) == seconds


@pytest.mark.parametrize(("message_bytes", "seconds"), [(10, 1.0), (100, 9.0)])
def test_the_burst_shortens_an_all_reduce_once(message_bytes: float, seconds: float) -> None:
    cost = all_reduce(message_bytes, Group(2, 1, SLOW, SLOW, library="gloo"))

    assert cost.seconds == seconds
    assert cost.sent_bytes == message_bytes


@pytest.mark.parametrize("burst_s", [0.0, 3.0, 100.0])
def test_messages_in_a_row_use_up_the_burst(burst_s: float) -> None:
    """Forward passes of 1 s whose messages occupy the wire for 4 s: each finds it 3 s fuller."""
    plan = ParallelPlan.parse("pp=2,schedule=gpipe,microbatches=3")
    costs = costs_of(plan)
    costs = replace(costs, activations=(Hop("0-1", 4.0, 0.0, burst_s=burst_s), None))

    timeline = simulate(programs_of(plan), costs)

    arrivals = [max(sent, 1 + 4 * (n + 1) - burst_s) for n, sent in enumerate((1.0, 2.0, 3.0))]
    begins: list[float] = []
    for arrival in arrivals:
        begins.append(max(arrival, begins[-1] + 1.0) if begins else arrival)
    found = [
        start
        for action, start in zip(timeline.programs[1], timeline.start_s[1], strict=True)
        if action.kind.value == "forward"
    ]
    assert found == begins


@pytest.mark.parametrize(
    ("delay", "sizes"),
    [
        ("staleness=1", (100, 900)),
        ("staleness=1", (900, 100)),
        ("staleness=0", (100, 900)),
        ("staleness=0", (900, 100)),
    ],
)
def test_the_stages_of_a_node_average_in_turns_over_its_one_adapter(
    delay: str, sizes: tuple[int, int]
) -> None:
    """Two nodes of two devices: all gradients of a node pass its adapter, however unequal."""
    units = UnitTable(
        "two", tuple(Unit(f"{count}", 1, plain(count, tensors=0), 1, 1) for count in sizes), 1
    )
    network = Network(2, Link(0, 1e12), Link(0, 100.0, shared_by=2), "gloo")
    plan = ParallelPlan.parse(f"dp=2,pp=2,microbatches=2,{delay},order=dp-pp-tp")

    found = project(
        plan,
        units,
        lambda microbatch: UnitTimes(microbatch, (1e-6, 1e-6), (1e-6, 1e-6), 0.0, (0, 0)),
        network,
        global_batch_size=4,
        optimizer="sgd",
        cuts=(1,),
    )

    assert found.step_s == pytest.approx(4 * sum(sizes) / 100, rel=1e-6)


def test_stages_with_adapters_of_their_own_average_at_the_same_time() -> None:
    units = UnitTable(
        "two", tuple(Unit(f"{count}", 1, plain(count, tensors=0), 1, 1) for count in (100, 900)), 1
    )
    plan = ParallelPlan.parse("dp=2,pp=2,microbatches=2,staleness=1,order=dp-pp-tp")

    found = project(
        plan,
        units,
        lambda microbatch: UnitTimes(microbatch, (1e-6, 1e-6), (1e-6, 1e-6), 0.0, (0, 0)),
        Network(2, Link(0, 1e12), Link(0, 100.0), "gloo"),
        global_batch_size=4,
        optimizer="sgd",
        cuts=(1,),
    )

    assert found.step_s == pytest.approx(4 * 900 / 100, rel=1e-6)
