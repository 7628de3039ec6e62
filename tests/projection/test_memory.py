"""Memory of pipeline ranks: weights, versions, gradients, optimizer state, activations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hybridperf.plan import SCHEDULES, ParallelPlan
from hybridperf.projection.memory import Memory, memory_bytes
from tests.projection.tables import equal_units, tied_units

PARAMETERS = 1000
TABLE = equal_units(24, parameters=PARAMETERS)
WEIGHTS = 4 * 24 * PARAMETERS


def memory_of(text: str, optimizer: str = "sgd", microbatch: int = 3) -> tuple[Memory, ...]:
    plan = ParallelPlan.parse(text)
    each = 24 // plan.pipeline_stages
    cuts = range(each, 24, each)
    return memory_bytes(plan, TABLE, [*cuts], microbatch, optimizer)


@pytest.mark.parametrize(
    ("optimizer", "tensors"), [("sgd", 1), ("lars", 1), ("adamw", 2), ("lamb", 2)]
)
def test_an_optimizer_keeps_its_state_for_each_parameter(optimizer: str, tensors: int) -> None:
    (memory,) = memory_of("dp=1", optimizer)
    assert (memory.weights_bytes, memory.gradients_bytes) == (WEIGHTS, WEIGHTS)
    assert memory.optimizer_bytes == tensors * WEIGHTS
    assert memory.versions_bytes == 0


@pytest.mark.parametrize("staleness", [1, 2, 3])
@pytest.mark.parametrize("flush", ["on", "off"])
def test_staleness_keeps_as_many_versions_more(staleness: int, flush: str) -> None:
    for memory in memory_of(f"pp=3,microbatches=3,staleness={staleness},flush={flush}"):
        assert memory.versions_bytes == staleness * memory.weights_bytes


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (4, 8), (4, 32), (3, 3)])
def test_the_first_rank_keeps_what_the_registry_says(
    schedule: str, ranks: int, microbatches: int
) -> None:
    plan = ParallelPlan.parse(f"pp={ranks},schedule={schedule},microbatches={microbatches}")
    memory = memory_of(str(plan))
    assert plan.pipeline is not None
    kept = plan.pipeline.activations.value(ranks, plan.stages, microbatches)
    each = 24 // plan.pipeline_stages
    stage_bytes = 4 * 3 * (10 + each * 30)  # inputs and what each unit keeps, for 3 samples
    most = max(each.activations_bytes for each in memory)
    assert most == pytest.approx(kept * plan.stages * stage_bytes)


def test_1f1b_keeps_less_on_later_ranks() -> None:
    kept = [memory.activations_bytes for memory in memory_of("pp=4,microbatches=8")]
    assert kept == [number * kept[-1] for number in (4, 3, 2, 1)]


def test_zero_shards_what_it_says() -> None:
    whole, one, two, three = (
        memory_of(f"dp=4,zero={zero}" if zero else "dp=4", "adamw")[0] for zero in range(4)
    )
    assert one.optimizer_bytes == two.optimizer_bytes == three.optimizer_bytes
    assert one.optimizer_bytes == whole.optimizer_bytes / 4
    assert three.weights_bytes == WEIGHTS / 4 + 2 * 4 * PARAMETERS  # and two units gathered
    assert two.gradients_bytes == WEIGHTS / 4 + 2 * 4 * PARAMETERS
    assert one.weights_bytes == two.weights_bytes == WEIGHTS / 4 + WEIGHTS
    accumulating = memory_of("dp=4,zero=1,microbatches=2")[0]
    assert accumulating.gradients_bytes == WEIGHTS / 4 + WEIGHTS


def test_each_stage_has_a_copy_of_what_its_units_share() -> None:
    """Of four units, the first, the second and the last have 700 parameters in common."""
    table = tied_units(4, (0, 1, 3), shared=700)

    def parameters(text: str, *cuts: int) -> list[tuple[float, float]]:
        found = memory_bytes(ParallelPlan.parse(text), table, cuts, 1, "adamw")
        assert all(each.gradients_bytes == each.weights_bytes for each in found)
        return [(each.weights_bytes / 4, each.optimizer_bytes / 8) for each in found]

    assert table.parameters == 4000 + 700
    assert parameters("dp=1") == [(4700, 4700)]
    assert parameters("pp=2", 2) == [(2700, 2700), (2700, 2700)]
    assert parameters("pp=4,microbatches=4", 1, 2, 3) == [(1700, 1700)] * 2 + [
        (1000, 1000),
        (1700, 1700),
    ]
    # Both stages of the first rank have it, those of the second do not all.
    assert parameters("pp=2,schedule=zbv,microbatches=4", 1, 2, 3) == [(3400, 3400), (2700, 2700)]
    # Whole on each replica; of the others a half, and two units gathered.
    assert parameters("dp=2,zero=3") == [(700 + 2000 + 2000, 700 + 2000)]


def test_fewer_replicas_that_shard_keep_more_each() -> None:
    assert (
        memory_of("dp=8,zero=3,shard=2")[0].optimizer_bytes
        == 4 * memory_of("dp=8,zero=3")[0].optimizer_bytes
    )


def test_offloading_leaves_activations_and_what_is_gathered() -> None:
    memory = memory_of("dp=4,zero=3,offload=cpu", "adamw")[0]
    assert memory.optimizer_bytes == 0
    assert memory.weights_bytes == memory.gradients_bytes == 2 * 4 * PARAMETERS


def test_recomputed_units_keep_their_outputs() -> None:
    (kept,), (full,), (half,) = (
        memory_of(f"dp=1,recompute={value}") for value in ("none", "full", "2")
    )
    sample = 4 * 3
    assert kept.activations_bytes == sample * (10 + 24 * 30)
    # One unit at a time has its activations again.
    assert full.activations_bytes == sample * (10 + 24 * 10 + 30)
    assert half.activations_bytes == sample * (10 + 12 * 10 + 12 * 30 + 30)


def test_bf16_halves_activations_and_keeps_narrow_weights() -> None:
    (memory,) = memory_of("dp=1,precision=bf16")
    assert memory.activations_bytes == 2 * 3 * (10 + 24 * 30) + 2 * 24 * PARAMETERS
    assert memory.weights_bytes == WEIGHTS


def test_tensor_parallelism_splits_split_layers_and_their_activations() -> None:
    table = equal_units(4, parameters=1000, output=10, kept=90, split=800)
    plain, split, by_tokens = (
        memory_bytes(ParallelPlan.parse(text), table, [], 1, "sgd")[0]
        for text in ("dp=1", "tp=2", "tp=2,sp=on")
    )
    assert split.weights_bytes == 4 * 4 * (200 + 400) == by_tokens.weights_bytes
    assert plain.activations_bytes == 4 * (10 + 4 * 90)
    assert split.activations_bytes == 4 * (10 + 4 * (50 + 20))
    assert by_tokens.activations_bytes == 4 * (10 + 4 * 45)


def test_running_statistics_are_kept_with_the_weights() -> None:
    units = tuple(replace(unit, buffers=7) for unit in TABLE.units)
    (memory,) = memory_bytes(ParallelPlan.parse("dp=1"), replace(TABLE, units=units), [], 1, "sgd")
    assert memory.weights_bytes == WEIGHTS + 4 * 24 * 7


def test_many_micro_batches_keep_no_more_than_some() -> None:
    for schedule in ("1f1b", "interleaved", "zbv"):
        text = f"pp=4,schedule={schedule},microbatches="
        assert memory_of(f"{text}400") == memory_of(f"{text}16")
    few, many = (memory_of(f"pp=4,schedule=gpipe,microbatches={m}")[0] for m in (16, 400))
    assert many.activations_bytes == 25 * few.activations_bytes
