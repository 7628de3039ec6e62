"""Tensor parallelism over a square, a square times a depth, and a cube; context parallelism.

Bytes by formula, and seconds, memory and work by hand.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest

from hybridperf.plan import ParallelPlan
from hybridperf.projection.costs import exchange_s, work_share
from hybridperf.projection.exchanges import (
    arranged_gradient_bytes,
    arranged_tensor_bytes,
    context_parallel_bytes,
)
from hybridperf.projection.memory import memory_bytes
from hybridperf.projection.network import Network, NetworkLink
from hybridperf.projection.project import project
from hybridperf.projection.traffic import (
    held_parameters,
)
from hybridperf.projection.units import Parameters, UnitCounts, UnitTable, UnitTimes
from tests.projection.tables import equal_units, plain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hybridperf.projection.exchanges import PassBytes

TOKENS: Final = 16
FLAT: Final = Network(64, NetworkLink(0.0, 1.0))  #: one second a byte, between any two ranks
ARRANGED: Final = {"2d": 4, "2.5d": 8, "3d": 8}  #: ranks, with a side and a depth of two


def encoder(hidden: int, *, norms: bool = False, outputs: int = 0) -> UnitTable:
    """Return an encoder layer with ``outputs`` between units without parameters or outputs."""
    groups = [
        Parameters("column", hidden, 3 * hidden**2, 3),
        Parameters("row", hidden, 5 * hidden**2, 2),
        Parameters("column", 4 * hidden, 4 * hidden**2, 1),
    ]
    if norms:
        groups.append(Parameters("normalization", hidden, 4 * hidden, 4))
    ends = UnitCounts("embeddings", 0.0, (), 0, 0)
    layer = replace(
        ends,
        name="layers.0",
        forward_flops=1.0,
        parameter_groups=tuple(groups),
        output_elements=outputs,
        kept_elements=12 * TOKENS * hidden,
        tp_outputs=2 * TOKENS * hidden,
        tp_outputs_again=TOKENS * hidden,
        tp_inputs=2 * TOKENS * hidden,
        tokens=TOKENS,
    )
    return UnitTable("test/encoder", (ends, layer, replace(ends, name="head")), 0)


def plan_of(tensor: str, ranks: int = 0, **fields: int) -> ParallelPlan:
    return ParallelPlan(tensor=tensor, tp=ranks or ARRANGED.get(tensor, 4), **fields)  # type: ignore[arg-type]  # one of its words


def received(sent: PassBytes | float, ranks: int) -> float:
    """Return the elements that a rank receives in a ring of ``ranks``."""
    if isinstance(sent, float):
        return 2 * (ranks - 1) / ranks * sent / 4
    return (ranks - 1) / ranks * (2 * sent.all_reduced + sent.scattered + sent.gathered) / 4


def all_received(plan: ParallelPlan, table: UnitTable, samples: int) -> float:
    """Return the elements that a rank receives for the layer of ``table`` in a step."""
    axes: Mapping[str, int] = {**plan.tensor_axes, "tp": plan.tp}
    passes = arranged_tensor_bytes(plan, table.units, 1, samples)
    sums = arranged_gradient_bytes(plan, table.units[1])
    return sum(
        received(each, axes[axis]) for axis, sent in passes.items() for each in sent[:2]
    ) + sum(received(size, axes[axis]) for axis, size in sums.items())


@pytest.mark.parametrize(
    ("tensor", "ranks"), [*ARRANGED.items(), ("2d", 16), ("2.5d", 32), ("3d", 64)]
)
def test_a_layer_receives_what_the_formulas_say(tensor: str, ranks: int) -> None:
    """Of m tokens; the three linear layers of attention's inputs share what they gather."""
    hidden, samples = 64, 64
    plan = plan_of(tensor, ranks)
    m, q = samples * TOKENS, plan.tensor_axes["j"]
    inputs, outputs, weights = 7 * m * hidden, 9 * m * hidden, 12 * hidden**2
    if tensor == "3d":
        expected = 2 * (q - 1) / q**3 * (inputs + outputs + weights)
    else:
        d = plan.tensor_axes.get("e", 1)
        expected = 2 * (q - 1) * (inputs / (d * q**2) + weights / q**2)
        expected += 2 * (d - 1) / d * weights / q**2

    assert all_received(plan, encoder(hidden), samples) == pytest.approx(expected)


def step_s(plan: ParallelPlan, table: UnitTable, samples: int, network: Network = FLAT) -> float:
    """Return the projected step of passes that take no time themselves."""
    none = (0.0,) * 3
    return project(
        plan,
        table,
        lambda microbatch: UnitTimes(microbatch, none, none, 0.0, none),
        network,
        global_batch_size=samples,
        optimizer="sgd",
    ).step_s


@pytest.mark.parametrize("tensor", ARRANGED)
def test_a_byte_a_second_takes_as_many_seconds_as_bytes(tensor: str) -> None:
    plan, table = plan_of(tensor), encoder(8, norms=True)

    assert step_s(plan, table, 64) == pytest.approx(4 * all_received(plan, table, 64))


def test_one_dimension_is_faster_up_to_the_tokens_that_arithmetic_says() -> None:
    """Of four ranks, 6 m h elements against 3.5 m h + 6 h^2: equal at m = 2.4 h tokens."""
    hidden = 160  # 384 tokens: 24 samples
    table = encoder(hidden)
    for samples, which in ((22, 1), (24, 0), (26, -1)):
        one, two = (step_s(plan_of(tensor), table, samples) for tensor in ("1d", "2d"))
        assert one == pytest.approx(4 * 6 * samples * TOKENS * hidden)
        assert two - one == pytest.approx(0) if which == 0 else (two - one) * which > 0


def test_each_axis_is_as_fast_as_its_links() -> None:
    """Of nodes with two devices, j is within a node and i across: weights cross."""
    hidden, samples = 8, 4
    network = Network(2, NetworkLink(0.0, 1.0), NetworkLink(0.0, 0.25, shared_by=2))
    table, plan = encoder(hidden), plan_of("2d")
    m = samples * TOKENS

    spent = exchange_s(plan, network, table.units, 1, samples, stride=1)

    inside_s = 4 * 7 * m * hidden / 4  # (q - 1) / q^2 of the inputs
    across_s = 4 * 12 * hidden**2 / 4 / (0.25 / 2)  # both groups of a node share an adapter
    assert spent.forward_s == pytest.approx(inside_s + across_s)
    assert exchange_s(plan, network, table.units, 0, samples, stride=1) == (0, 0, 0)


@pytest.mark.parametrize(("ranks", "longest"), [(2, 8), (3, 6), (4, 4), (5, 4)])
def test_a_ring_takes_as_long_as_its_longest_messages(ranks: int, longest: int) -> None:
    """Of 16 tokens; keys and values forward, again backward, and c rounds of their gradients."""
    hidden, samples = 8, 3
    table, plan = encoder(hidden, outputs=TOKENS * hidden), ParallelPlan(cp=ranks)
    mean = context_parallel_bytes(plan, table.units, 1, samples)
    tokens = samples * TOKENS

    def sent_s(network: Network, text: str = "") -> float:
        return step_s(ParallelPlan.parse(f"cp={ranks}{text}"), table, samples, network)

    elements = (3 * ranks - 2) / ranks * 2 * tokens * hidden
    assert mean.forward.ring + mean.backward.ring == pytest.approx(4 * elements)
    part_s = 4 * 2 * samples * longest * hidden
    gather_s = (ranks - 1) * 4 * samples * longest * hidden  # of the outputs of the last layer
    sum_s = 2 * (ranks - 1) / ranks * 4 * 12 * hidden**2  # of gradients, once a step
    assert sent_s(FLAT) == pytest.approx((3 * ranks - 2) * part_s + gather_s + sum_s)
    again_s = sent_s(FLAT, ",recompute=full") - sent_s(FLAT)
    assert again_s == pytest.approx((ranks - 1) * part_s)
    late = Network(64, NetworkLink(1.0, 1e30), library="gloo")  # which has rings only
    assert sent_s(late) == pytest.approx((3 * ranks - 2) + (ranks - 1) + 2 * (ranks - 1))


def test_a_ring_over_nodes_is_as_slow_as_the_link_between_them() -> None:
    table, plan = encoder(8, outputs=TOKENS * 8), ParallelPlan(cp=4)
    one, two = (
        Network(devices, NetworkLink(0.0, 1.0), NetworkLink(0.0, 0.25)) for devices in (4, 2)
    )

    fast, slow = (exchange_s(plan, each, table.units, 1, 2, stride=1) for each in (one, two))

    assert slow.again_s == 4 * fast.again_s > 0  # the ring alone


def test_rings_of_tp_ranks_share_the_adapters_of_a_node() -> None:
    """A tp group on each of two nodes: both its ranks send to the other node."""
    network = Network(2, NetworkLink(0.0, 1.0), NetworkLink(0.0, 0.25, shared_by=2))
    table, samples = encoder(8, outputs=TOKENS * 8), 2

    spent = exchange_s(ParallelPlan(tp=2, cp=2), network, table.units, 1, samples, stride=1)

    own = samples * TOKENS // 2 * 8  # outputs of a rank's tokens
    ring_s = 4 * 2 * own / 2 / (0.25 / 2)  # keys and values of half of the heads
    assert spent.again_s == pytest.approx(ring_s + 4 * own)


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("tp=4", 0.25),
        ("tp=4,tensor=2d", 0.25),
        ("tp=8,tensor=3d", 0.125),
        ("cp=2", 0.5),
        ("cp=3", 6 / 16),
        ("cp=2,tp=2", 0.25),
    ],
)
def test_ranks_divide_the_work_of_a_layer_and_of_no_other_unit(text: str, share: float) -> None:
    plan, units = ParallelPlan.parse(text), encoder(8).units

    assert [work_share(plan, unit) for unit in units] == [1, share, 1]


@pytest.mark.parametrize(
    "texts",
    [
        ("dp=1", "cp=2", "cp=3", "cp=4", "cp=16"),
        ("dp=1", "tp=4,tensor=2d", "tp=16,tensor=2d", "tp=64,tensor=2d"),
        ("dp=1", "tp=8,tensor=2.5d", "tp=16,tensor=2.5d", "tp=32,tensor=2.5d"),
        ("dp=1", "tp=8,tensor=3d", "tp=27,tensor=3d", "tp=64,tensor=3d"),
    ],
    ids=lambda texts: texts[-1],
)
def test_more_ranks_take_less_time_and_less_memory_where_links_are_free(
    texts: tuple[str, ...],
) -> None:
    table, free = encoder(8, norms=True, outputs=TOKENS * 8), Network(64, NetworkLink(0.0, 1e30))
    steps_s, sizes = [], []
    for text in texts:
        projection = project(
            ParallelPlan.parse(text),
            table,
            lambda samples: UnitTimes(samples, (1.0,) * 3, (2.0,) * 3, 0.5, (0.0,) * 3),
            free,
            global_batch_size=8,
            optimizer="adamw",
        )
        steps_s.append(projection.step_s)
        sizes.append(projection.memory_bytes[0])

    layer_s = [step_s - 2 * 3 - 0.5 for step_s in steps_s]  # of the other units, and the loss
    assert layer_s[0] == pytest.approx(3)
    assert layer_s == sorted(layer_s, reverse=True)
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == len(sizes)


def test_memory_is_divided_by_the_axes_that_split() -> None:
    table = encoder(8, norms=True)
    layer = table.units[1]

    def held(text: str) -> float:
        return held_parameters(ParallelPlan.parse(text), layer)

    weights, norms = 12 * 64, 4 * 8
    assert held("tp=4") == weights / 4 + norms
    assert held("tp=4,tensor=2d") == weights / 4 + norms / 2
    assert held("tp=8,tensor=2.5d") == weights / 4 + norms / 2  # e replicates
    assert held("tp=8,tensor=3d") == weights / 8 + norms / 2
    for text in ("tp=4,tensor=2d", "tp=8,tensor=2.5d", "tp=8,tensor=3d"):
        (memory,) = memory_bytes(ParallelPlan.parse(text), table, [], 8, "adamw")
        assert memory.weights_bytes == memory.gradients_bytes == 4 * held(text)
        assert memory.optimizer_bytes == 8 * held(text)


@pytest.mark.parametrize(
    ("text", "kept", "weights"),
    [
        ("tp=4,tensor=2d", 1536 / 4 + 896 / 2, 768 / 2),
        ("tp=8,tensor=2.5d", 1536 / 8 + 896 / 4, 768 / 2),
        ("tp=8,tensor=3d", 1536 / 8 + 896 / 4, 768 / 4),
    ],
)
def test_operands_that_are_gathered_stay_until_the_backward_pass(
    text: str, kept: float, weights: float
) -> None:
    """Of 1536 elements a sample, of which layers gather 896 as inputs, and 768 weights."""
    plan, again = ParallelPlan.parse(text), ParallelPlan.parse(f"{text},recompute=full")

    for each in (plan, again):  # outputs are none here
        (memory,) = memory_bytes(each, encoder(8), [], 8, "sgd")
        assert memory.activations_bytes == 4 * (8 * kept + weights)


def test_activations_are_whole_where_they_cease_to_be_split() -> None:
    """Of two layers and a head; 5 tokens are 3 on the rank with most of them."""
    layers = equal_units(3, output=10, kept=30, split=800)
    head = replace(layers.units[2], parameter_groups=plain(1000), tokens=0)
    table = replace(layers, units=(*layers.units[:2], head))

    def kept(text: str, *cuts: int) -> list[float]:
        found = memory_bytes(ParallelPlan.parse(text), table, cuts, 1, "sgd")
        return [memory.activations_bytes / 4 for memory in found]

    assert kept("dp=1") == [10 + 3 * 30]
    share = 3 / 5
    assert kept("cp=2") == [10 + 2 * share * 30 + (1 - share) * 10 + 30]
    assert kept("cp=2,recompute=full") == [10 + share * 10 + 10 + 10 + 30]
    assert kept("pp=2,cp=2,microbatches=1,schedule=gpipe", 1) == [
        10 + share * 30,
        share * 10 + share * 30 + (1 - share) * 10 + 30,
    ]
