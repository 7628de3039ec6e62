"""Adapters that unequal stages share."""

from __future__ import annotations

import pytest

from hybridperf.plan import ParallelPlan
from hybridperf.projection.network import Network, NetworkLink
from hybridperf.projection.project import project
from hybridperf.projection.units import UnitCounts, UnitTable, UnitTimes
from tests.projection.tables import plain


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
        "two", tuple(UnitCounts(f"{count}", 1, plain(count, tensors=0), 1, 1) for count in sizes), 1
    )
    network = Network(2, NetworkLink(0, 1e12), NetworkLink(0, 100.0, shared_by=2), "gloo")
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
        "two",
        tuple(UnitCounts(f"{count}", 1, plain(count, tensors=0), 1, 1) for count in (100, 900)),
        1,
    )
    plan = ParallelPlan.parse("dp=2,pp=2,microbatches=2,staleness=1,order=dp-pp-tp")

    found = project(
        plan,
        units,
        lambda microbatch: UnitTimes(microbatch, (1e-6, 1e-6), (1e-6, 1e-6), 0.0, (0, 0)),
        Network(2, NetworkLink(0, 1e12), NetworkLink(0, 100.0), "gloo"),
        global_batch_size=4,
        optimizer="sgd",
        cuts=(1,),
    )

    assert found.step_s == pytest.approx(4 * 900 / 100, rel=1e-6)
