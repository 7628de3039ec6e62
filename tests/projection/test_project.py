"""Projections: steady steps in closed form, bounds below them, and bytes sent by kind."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from hybridperf.plan import SCHEDULES, ParallelPlan
from hybridperf.projection import project as module
from hybridperf.projection.costs import plan_at_least_s, plan_costs
from hybridperf.projection.network import Network, NetworkLink, all_reduce
from hybridperf.projection.partition import stage_cuts
from hybridperf.projection.project import Projection, project
from hybridperf.projection.traffic import Stages, parameter_gathers, replica_node_bytes
from hybridperf.projection.units import UnitTimes
from tests.projection.tables import FAST, equal_units, plain, tied_units, timing_of

if TYPE_CHECKING:
    from hybridperf.projection.units import UnitTable, UnitTiming

TABLE = equal_units(24, split=800)
TIMING = timing_of(TABLE)  # 1 s forward and 2 s backward in each unit
SLOW = Network(2, NetworkLink(0.001, 1e6), NetworkLink(0.002, 1e5))
SHARED = Network(4, NetworkLink(0.001, 1e6), NetworkLink(0.002, 1e5, shared_by=4))


def projected(
    text: str,
    network: Network = FAST,
    *,
    batch: int = 4800,
    table: UnitTable = TABLE,
    timing: UnitTiming = TIMING,
    clips: bool = False,
) -> Projection:
    return project(
        ParallelPlan.parse(text),
        table,
        timing,
        network,
        global_batch_size=batch,
        optimizer="sgd",
        clips=clips,
    )


@pytest.mark.parametrize(
    ("text", "step_s"),
    [
        ("dp=1", 72),
        ("dp=1,microbatches=5", 5 * 72),
        ("dp=1,recompute=full", 96),
        ("tp=2", 24 * 3 * (1 - 0.8 / 2)),
        ("pp=4,microbatches=8", 18 * (8 + 3)),
        ("pp=4,microbatches=8,schedule=gpipe", 18 * (8 + 3)),
        ("pp=4,microbatches=8,schedule=interleaved", 9 * (2 * 8 + 3)),
        ("pp=4,microbatches=8,staleness=1", 18 * (8 + 3)),
        ("pp=4,microbatches=8,staleness=1,flush=off", 18 * 8),
        ("pp=4,microbatches=2,staleness=2,flush=off", 18 * 2),
        ("pp=4,microbatches=400", 18 * (400 + 3)),
        ("pp=4,microbatches=400,schedule=gpipe", 18 * (400 + 3)),
        ("pp=4,microbatches=400,schedule=interleaved", 9 * (2 * 400 + 3)),
        ("pp=4,microbatches=400,staleness=1,flush=off", 18 * 400),
    ],
)
def test_equal_stages_take_their_closed_forms(text: str, step_s: float) -> None:
    found = projected(text)
    assert found.step_s == pytest.approx(step_s)
    assert found.samples_per_s == pytest.approx(4800 / step_s)
    assert found.exposed_communication_s == pytest.approx(0.0, abs=1e-9)
    idle = sum(found.busy_s) / (len(found.busy_s) * step_s)
    assert found.idle_share == pytest.approx(1 - idle, abs=1e-9)


def test_an_update_is_split_by_tp_and_by_sharding() -> None:
    timing = timing_of(TABLE, update_s=1.0)
    plain, split, sharded = (
        projected(text, timing=timing).step_s - projected(text).step_s
        for text in ("dp=4", "tp=2", "dp=4,zero=1")
    )
    assert (plain, split, sharded) == pytest.approx((24, 24 * 0.6, 24 / 4))


def test_blocking_averages_come_on_top_and_overlapped_ones_as_far_as_they_show() -> None:
    """24 units of 4 kB make one bucket, which is ready when all units are."""
    plain = projected("dp=1").step_s
    averages_s = projected("dp=4,sync=blocking", SLOW).step_s - plain
    assert averages_s == pytest.approx(all_reduce(96_000, SLOW.group(4, 1)).seconds)
    assert projected("dp=4", SLOW).step_s - plain == pytest.approx(averages_s)
    assert projected("dp=4,staleness=1", SLOW).step_s == pytest.approx(plain)
    big = equal_units(24, parameters=10_000_000)  # 40 MB each: a bucket for each unit
    fast = Network(8, NetworkLink(0.0, 1e9))
    blocking = projected("dp=4,sync=blocking", fast, table=big)
    overlapped = projected("dp=4", fast, table=big)
    each_s = 1.5 * 40e6 / 1e9
    assert blocking.exposed_communication_s == pytest.approx(24 * each_s)
    assert overlapped.exposed_communication_s == pytest.approx(each_s)  # that of the first unit


def test_vggs_largest_layer_is_one_bucket_that_shows() -> None:
    """Most parameters are in one late layer: what precedes it in the backward pass hides little.

    The gradients of the layers before it wait behind it, though they are few.
    """
    units = tuple(
        replace(unit, parameter_groups=plain(100_000_000 if number == 22 else 1000))
        for number, unit in enumerate(TABLE.units)
    )
    found = projected("dp=4", Network(8, NetworkLink(0.0, 1e6)), table=replace(TABLE, units=units))
    rest_s = 22 * 2.0  # backward passes after it
    layer_s, later_s = 1.5 * 4 * 100_001_000 / 1e6, 1.5 * 4 * 22_000 / 1e6
    assert found.exposed_communication_s == pytest.approx(layer_s - rest_s + later_s)


def test_gradients_of_half_the_bytes_take_half_the_time() -> None:
    whole, half = (
        projected(text, Network(8, NetworkLink(0.0, 1e3))).exposed_communication_s
        for text in ("dp=4,sync=blocking", "dp=4,sync=blocking,gradients=bf16")
    )
    assert half == pytest.approx(whole / 2)


def test_clipping_holds_the_ranks_of_a_pipeline_together() -> None:
    plain, clipped = (
        projected("pp=4,microbatches=4,staleness=1,flush=off", SLOW, clips=clips)
        for clips in (False, True)
    )
    assert clipped.step_s > plain.step_s


def test_sharded_parameters_are_gathered_while_other_units_compute() -> None:
    big = equal_units(24, parameters=1_000_000)
    network = Network(8, NetworkLink(0.0, 1e9))
    gather_s = 0.75 * 4e6 / 1e9
    three = projected("dp=4,zero=3", network, table=big)
    # The first gather of each pass shows, and the last gradient's scatter.
    assert three.step_s == pytest.approx(72 + 3 * gather_s)
    gloo = projected("dp=4,zero=3", replace(network, library="gloo"), table=big)
    # One thing at a time, and a scatter is a whole all-reduce.
    assert gloo.step_s == pytest.approx(72 + 24 * 4 * gather_s)


def test_what_stays_whole_for_a_step_is_gathered_once() -> None:
    big = equal_units(24, parameters=1_000_000)
    network = Network(8, NetworkLink(0.0, 1e9))
    gather_s = 0.75 * 4e6 / 1e9
    one = projected("dp=4,zero=1,microbatches=3", network, table=big)
    assert one.step_s == pytest.approx(3 * 72 + 2 * gather_s)
    assert one.exposed_communication_s == pytest.approx(2 * gather_s)
    gloo = projected("dp=4,zero=1,microbatches=3", replace(network, library="gloo"), table=big)
    assert gloo.step_s == pytest.approx(3 * 72 + 24 * 3 * gather_s)


def test_more_micro_batches_than_are_simulated_cost_as_if_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draw = random.Random(3)
    times = UnitTimes(
        1,
        tuple(draw.uniform(0.5, 2) for _ in TABLE.units),
        tuple(draw.uniform(1, 4) for _ in TABLE.units),
        0.1,
        (0.01,) * 24,
    )
    for schedule in (*SCHEDULES, "1f1b,staleness=1,flush=off", "1f1b,staleness=1"):
        text = f"dp=2,pp=4,schedule={schedule},microbatches=40"
        if schedule == "zbv":
            text += ",sync=blocking"
        few = projected(text, SLOW, timing=lambda _: times)
        with monkeypatch.context() as patch:
            patch.setattr(module, "settling_plans", lambda plan: [plan])
            all_of_them = projected(text, SLOW, timing=lambda _: times)
        assert few.step_s == pytest.approx(all_of_them.step_s, rel=0.005), text
        assert few.exposed_s == pytest.approx(all_of_them.exposed_s, rel=0.02, abs=0.5), text


def random_plan(draw: random.Random) -> str:
    ranks, replicas = draw.choice([1, 2, 3, 4]), draw.choice([1, 2, 4])
    inner = draw.choice(["tp=1", "tp=2", "tp=4,tensor=2d", "tp=8,tensor=3d", "cp=2", "tp=2,cp=3"])
    parts = [f"dp={replicas}", f"pp={ranks}", inner]
    microbatches = ranks * draw.choice([1, 2, 5])
    parts.append(f"microbatches={microbatches}")
    choices = ["", "staleness=1"] if inner == "tp=1" else [""]
    if "tensor" in inner:
        choices = ["sync=blocking"]
    elif replicas > 1:
        choices += ["zero=1", "zero=3", "sync=blocking", "gradients=bf16"]
    extra = draw.choice(choices)
    if ranks > 1:
        schedules = ["1f1b", "gpipe"]
        if extra != "staleness=1":
            schedules.append("interleaved")
            if extra in {"zero=1", "sync=blocking"} or replicas == 1:
                schedules.append("zbv")
        parts.append(f"schedule={draw.choice(schedules)}")
        if extra == "staleness=1" and parts[-1].endswith("1f1b") and draw.random() < 0.5:
            parts.append("flush=off")
    if draw.random() < 0.3 and "zbv" not in parts[-1]:
        parts.append("recompute=full")
    return ",".join([*parts, extra] if extra else parts)


@pytest.mark.parametrize("seed", range(60))
def test_the_bound_is_below_every_projection_and_near_it_without_links(seed: int) -> None:
    draw = random.Random(seed)
    text = random_plan(draw)
    times = UnitTimes(
        1,
        tuple(draw.uniform(0.9, 1.1) for _ in TABLE.units),
        tuple(draw.uniform(1.8, 2.2) for _ in TABLE.units),
        0.05,
        (0.01,) * 24,
    )
    for network in (FAST, SLOW, SHARED):
        found = projected(text, network, timing=lambda _: times, clips=draw.random() < 0.3)
        costs = plan_costs(found.plan, TABLE, times, network, found.cuts).costs
        bound_s = plan_at_least_s(found.plan, costs)
        assert bound_s <= found.step_s * (1 + 1e-9), text
        if network is FAST:
            assert bound_s >= 0.6 * found.step_s, text


@pytest.mark.parametrize("text", ["dp=2,pp=2,microbatches=1,staleness=1", "pp=2,microbatches=4"])
def test_what_falls_behind_in_the_first_steps_limits_the_long_run(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Averages that may take a whole step take longer, or a wire is busy for longer than ranks."""
    link = NetworkLink(0.0, 2000.0)
    few = projected(text, Network(1, link, link), batch=4 * 4800)
    monkeypatch.setattr(module, "simulated_steps", lambda _: (range(60), range(50, 58)))
    monkeypatch.setattr(module, "busiest_s", lambda *_: 0.0)
    many = projected(text, Network(1, link, link), batch=4 * 4800)
    assert few.step_s == pytest.approx(many.step_s, rel=0.001)


def test_bytes_sent_are_those_of_all_ranks() -> None:
    """24 units of 1000 parameters, 10 outputs and 2 channels; micro-batches of 600 samples."""
    microbatch, everything = 600, 24_000

    def sent(text: str, batch: int = 4800) -> dict[str, float]:
        return projected(text, batch=batch).sent_bytes

    activations = 4 * microbatch * 10
    assert sent("dp=1") == {}
    assert sent("dp=2") == {"gradients": 2 * 4 * everything}
    assert sent("dp=2,gradients=bf16") == {"gradients": 2 * 2 * everything}
    assert sent("dp=2,staleness=1") == {"gradients": 2 * 4 * everything}
    assert sent("dp=2,gradients=powersgd") == {"gradients": 2 * 4 * 24 * 100}
    both = {"activations": 3 * 8 * activations, "activation_gradients": 3 * 8 * activations}
    assert sent("pp=4,microbatches=8") == both
    crossings = 7 * 8 * activations
    assert sent("pp=4,microbatches=8,schedule=interleaved") == dict.fromkeys(both, crossings)
    # In a V, one of the seven boundaries is between stages of one rank.
    assert sent("pp=4,microbatches=8,schedule=zbv") == dict.fromkeys(both, 6 * 8 * activations)
    for links, size in (
        ("bf16", 2 * 6000),
        ("int8", 6000 + 4 * 2),
        ("topk", 8 * 600),
    ):
        assert sent(f"pp=4,microbatches=8,links={links}") == dict.fromkeys(both, 24 * size)
    assert sent("tp=2") == {"tensor_parallel": 2 * 2 * 4 * 24 * 20 * 4800}
    # Two ranks have three of the five tokens each, padded; all of them are gathered at the end, and
    # gradients of the 200 parameters of each unit that are not split are added up.
    split = (2 * 2 * 24 * 20 + 10) * 4800 * 6 / 5
    assert sent("tp=2,sp=on") == {"tensor_parallel": 2 * 4 * (split + 24 * 200)}
    assert sent("tp=2,recompute=full") == {"tensor_parallel": 2 * 2.5 * 4 * 24 * 20 * 4800}
    assert sent("dp=4,zero=3,microbatches=2") == {
        "gradients": 4 * 2 * 4 * everything,
        # The last unit's once more: FSDP prefetches it at the end, in vain.
        "parameters": 4 * 4 * (2 * 2 * everything + 1000),
    }


def test_stages_add_up_the_gradients_of_what_they_share() -> None:
    """The first and the last of four units have 700 parameters in common."""
    table = tied_units(4, (0, 3), shared=700)

    def found(text: str, network: Network = FAST) -> Projection:
        plan = ParallelPlan.parse(text)
        timing = timing_of(table, update_s=1.0)
        return project(plan, table, timing, network, global_batch_size=24, optimizer="sgd")

    def sent(text: str) -> dict[str, float]:
        own = found(text).sent_bytes
        return {kind: own[kind] / 4 for kind in own.keys() & {"gradients", "shared_gradients"}}

    assert sent("dp=2") == {"gradients": 2 * 4700}
    assert sent("pp=4,microbatches=4") == {"shared_gradients": 2 * 700}
    assert sent("dp=3,pp=2") == {"gradients": 3 * 5400, "shared_gradients": 3 * 2 * 700}
    # Both copies are on the first rank.
    assert sent("dp=2,pp=2,schedule=zbv,zero=1,microbatches=4") == {"gradients": 2 * 5400}
    assert sent("dp=2,gradients=powersgd") == {"gradients": 2 * (800 + 2 * 100 + 100)}
    # At 1,000 bytes a second, 2,800 bytes in a ring of two ranks; of equal units, one update.
    slow = Network(1, NetworkLink(0.0, 1000.0))
    messages_s = found("pp=4,microbatches=4,links=bf16", slow).step_s
    assert messages_s > 0
    whole, apart = found("dp=1"), found("pp=2,microbatches=1,schedule=gpipe")
    assert whole.step_s == pytest.approx(4 * 3 + 2 + (1700 + 1000) / 1700)
    assert apart.step_s == pytest.approx(4 * 3 + 2)
    more = found("pp=2,microbatches=1,schedule=gpipe", Network(2, NetworkLink(0.0, 1000.0)))
    boundary_s = 2 * 24 * 10 * 4 / 1000
    assert more.step_s == pytest.approx(4 * 3 + 2 + boundary_s + 2.8, rel=0.01)


def test_a_timeline_comes_if_asked_for() -> None:
    plan = ParallelPlan.parse("pp=2,microbatches=2")
    found = project(
        plan, TABLE, TIMING, FAST, global_batch_size=8, optimizer="sgd", with_timeline=True
    )
    assert found.timeline is not None
    assert found.timeline.programs[0][0].step == 0
    assert projected("pp=2,microbatches=2").timeline is None


def test_stages_that_are_not_the_plans_are_refused() -> None:
    plan = ParallelPlan.parse("pp=2,microbatches=2")
    with pytest.raises(ValueError, match="has 2 stages of 24 units, not those cut at"):
        project(plan, TABLE, TIMING, FAST, global_batch_size=8, optimizer="sgd", cuts=[4, 8])


def test_averages_hide_only_what_is_not_their_own_work() -> None:
    table, timing = equal_units(4), timing_of(equal_units(4))
    link = NetworkLink(
        0.0, 1000.0
    )  # 16,000 bytes of gradients in a ring of two: 16 s, more than a pass
    free = Network(2, link, library="gloo")
    busy = replace(free, averaging_work=0.5)  # 8 s

    def step_s(plan: str, network: Network) -> float:
        found = project(
            ParallelPlan.parse(plan), table, timing, network, global_batch_size=2, optimizer="sgd"
        )
        return found.step_s

    assert step_s("dp=2,sync=blocking", busy) == step_s("dp=2,sync=blocking", free)
    delayed = step_s("dp=2,staleness=1", free), step_s("dp=2,staleness=1", busy)
    assert delayed == pytest.approx((16.0, 12.0 + 8.0), rel=0.01)
    fast = replace(free, inside=NetworkLink(0.0, 4000.0))
    assert step_s("dp=2,staleness=1", fast) == pytest.approx(12.0, rel=0.01)
    assert step_s("dp=2,staleness=1", replace(fast, averaging_work=0.5)) == (
        pytest.approx(12.0 + 2.0, rel=0.01)
    )


@pytest.mark.parametrize(
    ("text", "gathers"),
    [
        ("dp=2,zero=1,microbatches=4", [(1,)]),
        ("dp=2,zero=2,microbatches=4", [(4,)]),
        ("dp=2,zero=3,microbatches=4", [(8,)]),
        ("dp=2,pp=2,zero=1,microbatches=4", [(1,), (1,)]),
        # All forward passes gather, then the first backward pass.
        ("dp=2,pp=2,zero=3,microbatches=4,schedule=gpipe", [(5,), (5,)]),
        # The last rank gathers once, and then in each backward pass; the first one, besides, where
        # two forward passes follow each other, and not where two backward passes do.
        ("dp=2,pp=2,zero=3,microbatches=4", [(5,), (5,)]),
    ],
)
def test_parameters_stay_gathered_until_a_forward_pass_ends(
    text: str, gathers: list[tuple[int, ...]]
) -> None:
    plan = ParallelPlan.parse(text)
    assert [parameter_gathers(plan, rank) for rank in range(plan.pp)] == gathers


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("dp=2", 0),  # on one node
        ("dp=4", 1.5),
        ("dp=8", 1.75),  # over four nodes
        ("dp=4,zero=1", 1.5),
        ("dp=4,zero=3", 0.75 * 3),  # parameters twice
        ("dp=4,zero=1,shard=2", 1),  # hierarchical
        ("dp=8,zero=1,shard=2", 2 * 3 / 4),
        ("dp=2,pp=2", 0),  # pipelines across nodes, replicas inside
        ("dp=2,pp=2,order=dp-pp-tp", 1),
        ("dp=4,pp=2,order=dp-pp-tp", 2 * 3 / 4),
        ("dp=2,tp=2", 2 * (600 / 1000)),  # each tp rank has 200 parameters of 1000 whole
        ("dp=4,gradients=bf16", 0.75),
    ],
)
def test_a_node_sends_what_rings_that_leave_it_carry(text: str, times: float) -> None:
    plan = ParallelPlan.parse(text)
    stages = Stages(plan, TABLE, stage_cuts(plan, TABLE.units))

    assert replica_node_bytes(stages, SLOW) == pytest.approx(times * 4 * 24_000)


def test_gloo_scatters_by_an_all_reduce() -> None:
    stages = Stages(ParallelPlan.parse("dp=4,zero=1"), TABLE, ())
    gloo = replace(SLOW, library="gloo")

    assert replica_node_bytes(stages, gloo) == pytest.approx(1.5 * replica_node_bytes(stages, SLOW))


def test_shards_are_averaged_over_their_copies() -> None:
    whole, copied = (projected(f"dp=4,zero=3{shard}").sent_bytes for shard in ("", ",shard=2"))
    assert copied["gradients"] == 1.5 * whole["gradients"]
