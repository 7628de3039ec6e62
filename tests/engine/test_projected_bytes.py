"""The bytes that ranks hand to sends and collectives are those that a projection states."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.plan import ParallelPlan
from hybridperf.projection.exchanges import (
    arranged_gradient_bytes,
    arranged_tensor_bytes,
)
from hybridperf.projection.partition import stage_cuts
from hybridperf.projection.traffic import (
    Stages,
    prefetched_bytes,
    sent_bytes,
)
from hybridperf_reference.units import unit_table
from tests.engine.bytes_worlds import count_all
from tests.engine.families import BATCH, FAMILIES
from tests.engine.ranks import run_ranks
from tests.tiers import in_tiers, plan_facts, selected

if TYPE_CHECKING:
    from pathlib import Path

    from tests.tiers import Fact

ITEMS = {
    2: (
        "vit:dp=2",
        "resnet:dp=2,microbatches=2",
        "vit:dp=2,sync=blocking",
        "vgg:dp=2,gradients=bf16",
        "vit:dp=2,staleness=1",
        "vit:dp=2,staleness=1,gradients=bf16",
        "vit:dp=2,gradients=powersgd",
        "resnet:dp=2,gradients=powersgd,staleness=2",
        "vgg:dp=2,zero=1,microbatches=2",
        "vgg:dp=2,zero=2,microbatches=2",
        "vgg:dp=2,zero=3",
        "vgg:dp=2,zero=3,microbatches=3,gradients=bf16",
        "vit:tp=2",
        "vit:tp=2,recompute=full",
        "bert_pairs:tp=2,sp=on,recompute=full,precision=bf16",
        "vgg:tp=2,recompute=full",
        "vgg:tp=2,precision=bf16",
        "vit:dp=2,zero=1,gradients=bf16",
        "resnet:dp=2,zero=3,precision=bf16,recompute=full",
        "vit:dp=2,zero=2,precision=bf16,microbatches=2",
        "resnet:dp=2,bn=sync,microbatches=2,recompute=2",
        "vit:pp=2",
        "resnet:pp=2,schedule=gpipe,microbatches=3",
        "vit:pp=2,schedule=interleaved,microbatches=4",
        "vgg:pp=2,schedule=zbv,microbatches=4",
        "vit:pp=2,microbatches=2,precision=bf16",
        "resnet:pp=2,links=bf16",
        "resnet:pp=2,links=int8",
        "vit:pp=2,links=int8,staleness=1,flush=off",
        "vgg:pp=2,links=topk",
        "bert_tied:dp=2",
        "bert_tied:dp=2,gradients=powersgd",
        "bert_tied:dp=2,zero=1",
        "bert_tied:pp=2",
        "bert_tied:pp=2,schedule=zbv,microbatches=4",
        "bert_tied:pp=2,links=bf16",
        "vit:cp=2",
        "bert_pairs:cp=2,recompute=full,precision=bf16",
    ),
    4: (
        "vit:dp=2,pp=2",
        "vit:dp=2,pp=2,staleness=1",
        "vgg:dp=2,pp=2,zero=1",
        "vgg:dp=2,pp=2,zero=3,microbatches=3",
        "vit:dp=2,pp=2,schedule=zbv,sync=blocking,microbatches=4",
        "vit:dp=2,tp=2",
        "vgg:dp=4,zero=3,shard=2",
        "vit:tp=4,sp=on",
        "vit:pp=2,tp=2,sp=on,recompute=full",
        "vit:pp=2,tp=2,sp=on,cuts=3,precision=bf16",
        "vgg:pp=2,tp=2,cuts=5,precision=bf16",
        "bert:dp=2,tp=2,zero=3,sp=on,precision=bf16",
        "vit:dp=4,zero=3,offload=cpu,precision=bf16",
        "vit:dp=4,zero=2,shard=2,precision=bf16,microbatches=3",
        "resnet:dp=4,zero=1,shard=2,bn=sync,microbatches=2",
        "vit:dp=2,pp=2,zero=3,precision=bf16",
        "bert_tied:pp=4",
        "bert_tied:dp=2,pp=2,zero=1",
        "bert_tied:dp=2,tp=2,sp=on,zero=3",
        "bert_tied:dp=4,zero=3,shard=2",
        "vit:cp=4,microbatches=2",
        "vit:dp=2,cp=2",
        "bert_tied:dp=2,cp=2,zero=3,microbatches=2",
        "vit:cp=2,tp=2,recompute=full,precision=bf16",
        "vit:pp=2,cp=2,recompute=2",
        "bert_tied:pp=2,cp=2,schedule=interleaved,microbatches=4",
        "vit:tp=4,tensor=2d",
        "bert_pairs:tp=4,tensor=2d,recompute=full,precision=bf16",
    ),
    8: (
        "vit:tp=8,tensor=2.5d,recompute=full",
        "vit:tp=8,tensor=3d,recompute=full",
        "vit:tp=8,tensor=3d,microbatches=2,precision=bf16",
        "bert_pairs:tp=8,tensor=3d,recompute=full,precision=bf16",
        "vit:dp=2,tp=4,tensor=2d,sync=blocking,microbatches=2",
        "vit:pp=2,tp=4,tensor=2d,cuts=2,recompute=full",
        "bert_tied:tp=8,tensor=2.5d",
    ),
}


def facts(case: tuple[int, int]) -> set[Fact]:
    """Return what is sent by: the plan, and whether units share a parameter."""
    ranks, number = case
    name, _, text = ITEMS[ranks][number].partition(":")
    return {("tied", FAMILIES[name].tied), *plan_facts(ParallelPlan.parse(text))}


PAIRS = in_tiers(
    [(ranks, number) for ranks, items in ITEMS.items() for number in range(len(items))], facts
)

#: by operation, or by the axis of its group
KINDS = {
    "send": "messages",
    **dict.fromkeys(("tp", *"eijk"), "tensor_parallel"),
    "cp": "context_parallel",
    "allreduce pp": "shared_gradients",
    "allreduce all": "shared_gradients",  # some of the stages
    "few": "gradients",  # of a small shard, averaged over its copies
    "allreduce": "gradients",
    "reduce_scatter_base": "gradients",
    "allgather_base": "parameters",
    "allgather": "statistics",
    "rows": "statistics",
}


@pytest.fixture(scope="module")
def counted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[int, int], list[Any]]:
    """Return what every rank counted, by number of ranks and of item."""
    found, cases = {}, [(each["ranks"], each["number"]) for each in selected(request)]
    for ranks in {ranks for ranks, _ in cases}:
        folder: Path = tmp_path_factory.mktemp(f"ranks_{ranks}")
        items = {number: ITEMS[ranks][number] for each, number in cases if each == ranks}
        run_ranks(ranks, count_all, folder, items, output=folder / "output.txt")
        for number in items:
            found[ranks, number] = [
                json.loads((folder / f"item_{number}_rank_{rank}.json").read_text())
                for rank in range(ranks)
            ]
    return found


def arranged_bytes(stages: Stages, microbatch: int) -> Counter[tuple[str, str]]:
    """Return the bytes of all ranks in a step above ``tensor=1d``, by operation and axis."""
    plan, found = stages.plan, Counter[tuple[str, str]]()
    for number, unit in enumerate(stages.table.units):
        sent = arranged_tensor_bytes(plan, stages.table.units, number, microbatch)
        for axis, passes in sent.items():
            repeated = (passes.again,) if number in stages.recomputed else ()
            for each in (passes.forward, passes.backward, *repeated):
                found["allgather_base", axis] += plan.microbatches * int(each.gathered)
                found["reduce_scatter_base", axis] += plan.microbatches * int(each.scattered)
                found["allreduce", axis] += plan.microbatches * int(each.all_reduced)
        for axis, count in arranged_gradient_bytes(plan, unit).items():
            found["allreduce", axis] += int(count)
    return Counter({key: plan.dp * plan.tp * count for key, count in found.items() if count})


@pytest.mark.parametrize(("ranks", "number"), PAIRS, ids=lambda each: f"{each}")
def test_counted_bytes_are_projected(
    counted: dict[tuple[int, int], list[Any]], ranks: int, number: int
) -> None:
    name, text = ITEMS[ranks][number].split(":")
    plan = ParallelPlan.parse(text)
    family = FAMILIES[name].of(plan)
    table = unit_table(family.task())
    stages = Stages(plan, table, stage_cuts(plan, table.units))
    projected = sent_bytes(stages, BATCH // plan.dp // plan.microbatches)
    messages = projected.pop("activations", 0.0) + projected.pop("activation_gradients", 0.0)
    if messages:
        projected["messages"] = messages

    found, by_axis = Counter[str](), Counter[tuple[str, str]]()
    for rank in counted[ranks, number]:
        for each, count in rank["bytes"].items():
            operation, axis = each.split()
            if operation == "few" and axis != "replicate":
                continue  # norms of tensors, which are split over the other axes
            key = each if each in KINDS else axis if axis in KINDS else operation
            found[KINDS[key]] += count
            if plan.tensor != "1d" and KINDS[key] == "tensor_parallel":
                by_axis[operation, axis] += count
    if plan.zero and plan.pp == 1 and plan.microbatches == 1:
        # FSDP takes the pass that warms up for a micro-batch of the first step.
        found["parameters"] -= plan.ranks * prefetched_bytes(plan, table.units)
    assert found == {kind: family.steps * count for kind, count in projected.items()}, text

    arranged = arranged_bytes(stages, BATCH // plan.dp // plan.microbatches)
    assert by_axis == {key: family.steps * count for key, count in arranged.items()}, text

    if plan.delays_or_compresses:
        sent = counted[ranks, number][0]["sent"]
        assert sent["link_bytes"] == family.steps * messages
        assert sent["gradient_bytes"] == family.steps * projected.get("gradients", 0)
