"""Collectives: their formulas, executed step by step, and what links they see."""

from __future__ import annotations

import pytest

from hybridperf.projection.network import (
    ALL_REDUCES,
    Network,
    NetworkLink,
    RankGroup,
    all_gather,
    all_reduce,
    broadcast,
    reduce_scatter,
)

MEGABYTE = 1e6
INSIDE, BETWEEN = NetworkLink(2e-6, 100e9), NetworkLink(10e-6, 10e9)


def on_one_node(ranks: int, link: NetworkLink = INSIDE) -> RankGroup:
    return RankGroup(ranks, ranks, link)


def ring_all_reduce(ranks: int, elements: int) -> tuple[list[list[int]], list[int]]:
    """Execute a ring all-reduce; return what each rank has at the end, and how much each sent."""
    parts = elements // ranks
    values = [[rank + 1] * elements for rank in range(ranks)]
    sent = [0] * ranks
    for adds in (True, False):
        for step in range(ranks - 1):
            messages = []
            for rank in range(ranks):
                part = (rank - step + (not adds)) % ranks
                at = slice(part * parts, (part + 1) * parts)
                messages.append(((rank + 1) % ranks, at, values[rank][at]))
                sent[rank] += parts
            for receiver, at, message in messages:
                own = values[receiver][at]
                values[receiver][at] = (
                    [a + b for a, b in zip(own, message, strict=True)] if adds else message
                )
    return values, sent


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_rings_bytes_are_those_of_one_executed(ranks: int) -> None:
    elements = 24 * ranks
    values, sent = ring_all_reduce(ranks, elements)
    assert values == [[ranks * (ranks + 1) // 2] * elements] * ranks
    assert all_reduce(elements, on_one_node(ranks), "ring").sent_bytes == sent[0]
    assert set(sent) == {sent[0]}


def test_a_ring_takes_its_steps_at_the_links_pace() -> None:
    cost = all_reduce(8 * MEGABYTE, on_one_node(8), "ring")
    assert cost.seconds == pytest.approx(14 * (2e-6 + MEGABYTE / 100e9))


def test_halves_of_an_all_reduce_take_half_as_long() -> None:
    group = on_one_node(4)
    whole = all_reduce(MEGABYTE, group, "ring")
    for half in (reduce_scatter(MEGABYTE, group), all_gather(MEGABYTE, group)):
        assert half.seconds == pytest.approx(whole.seconds / 2)
        assert half.sent_bytes == pytest.approx(whole.sent_bytes / 2)


def test_gloo_scatters_by_a_whole_all_reduce() -> None:
    group = RankGroup(4, 4, INSIDE, library="gloo")
    assert reduce_scatter(MEGABYTE, group) == all_reduce(MEGABYTE, group)
    assert all_gather(MEGABYTE, group).seconds < reduce_scatter(MEGABYTE, group).seconds


def test_a_tree_wins_where_latency_counts_and_a_ring_where_bandwidth_does() -> None:
    group = on_one_node(64)
    few, many = 1e3, 1e9
    assert all_reduce(few, group, "tree").seconds < all_reduce(few, group, "ring").seconds
    assert all_reduce(many, group, "tree").seconds > all_reduce(many, group, "ring").seconds
    for size in (few, many):
        best = min(all_reduce(size, group, name).seconds for name in ALL_REDUCES)
        assert all_reduce(size, group).seconds == best


def test_gloo_has_rings_only() -> None:
    group = RankGroup(64, 64, INSIDE, library="gloo")
    assert all_reduce(1e3, group) == all_reduce(1e3, group, "ring")


def test_a_hierarchical_all_reduce_is_three_collectives() -> None:
    group = RankGroup(32, 8, INSIDE, BETWEEN, adapters=8)
    cost = all_reduce(MEGABYTE, group, "hierarchical")
    inner = all_reduce(MEGABYTE, on_one_node(8), "ring")
    outer = all_reduce(MEGABYTE / 8, RankGroup(4, 1, INSIDE, BETWEEN), "ring")
    assert cost.seconds == pytest.approx(inner.seconds + outer.seconds)
    assert cost.sent_bytes == pytest.approx(inner.sent_bytes + outer.sent_bytes)


@pytest.mark.parametrize("name", ALL_REDUCES)
def test_no_all_reduce_beats_its_slowest_link(name: str) -> None:
    """Each node must send 2 (N - 1) / N of the bytes through its adapters, whatever the order."""
    for adapters in (1.0, 4.0, 8.0):
        group = RankGroup(32, 8, INSIDE, BETWEEN, adapters=adapters)
        least_s = 2 * 3 / 4 * MEGABYTE / (10e9 * adapters)
        assert all_reduce(MEGABYTE, group, name).seconds >= least_s  # type: ignore[arg-type]  # a name


def test_a_rank_alone_sends_nothing() -> None:
    for collective in (all_reduce, reduce_scatter, all_gather, broadcast):
        assert collective(MEGABYTE, on_one_node(1)) == (0.0, 0.0)


def test_a_broadcast_sends_each_byte_over_each_link_once() -> None:
    cost = broadcast(MEGABYTE, on_one_node(8))
    assert cost.seconds == pytest.approx(3 * 2e-6 + MEGABYTE / 100e9)


NETWORK = Network(8, INSIDE, NetworkLink(10e-6, 10e9, shared_by=8))  # one adapter for a node


@pytest.mark.parametrize(
    ("ranks", "stride", "per_node", "adapters"),
    [
        (8, 1, 8, 0.0),  # a node
        (4, 2, 4, 0.0),  # every second device of one
        (16, 1, 8, 1.0),  # two nodes, alone on them
        (8, 4, 2, 0.25),  # two on each of four nodes, and three more groups like it
        (4, 8, 1, 0.125),  # one on each node
        (6, 2, 3, 0.5),  # which no four of them divide
    ],
)
def test_a_groups_place_follows_from_its_stride(
    ranks: int, stride: int, per_node: int, adapters: float
) -> None:
    group = NETWORK.group(ranks, stride)
    assert group.ranks_per_node == per_node
    assert (group.between is None) == (not adapters)
    if adapters:
        assert group.adapters == pytest.approx(adapters, rel=0.5 if per_node == 3 else 1e-9)


def test_a_slow_link_between_nodes_is_shared_by_the_groups_that_cross_it() -> None:
    """Eight groups of two ranks share an adapter: as long as one group with an eighth of it."""
    shared = all_reduce(MEGABYTE, NETWORK.group(2, 8), "ring")
    alone = all_reduce(MEGABYTE, RankGroup(2, 1, INSIDE, NetworkLink(10e-6, 10e9 / 8)), "ring")
    assert shared == pytest.approx(alone)


def test_messages_of_neighbouring_pipelines_share_an_adapter() -> None:
    assert NETWORK.hop(0, 1, 1) is INSIDE
    assert NETWORK.hop(7, 8, 1).own_bytes_per_s == 10e9  # one pipeline crosses
    assert NETWORK.hop(0, 8, 8).own_bytes_per_s == 10e9 / 8  # eight do
