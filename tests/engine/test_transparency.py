"""Every plan computes what one process computes on the same global batch."""

from __future__ import annotations

import itertools
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch

from hybridperf.plan import ParallelPlan
from tests.engine.compare import assert_computed, found, run_world
from tests.engine.families import FAMILIES
from tests.engine.random_plans import BUDGET, RANKS, drawn
from tests.tiers import in_tiers, plan_facts, selected

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.tiers import Fact

# Each family trains under every one of these that fits it, but for what `LEFT_OUT` names.
PLANS = {
    1: (
        "dp=1",
        "microbatches=4",
        "recompute=full",
        "microbatches=2,recompute=3",
        "microbatches=4,bn=deferred",
        "microbatches=2,recompute=full,bn=deferred",
    ),
    2: (
        "dp=2",
        "dp=2,sync=blocking,microbatches=2",
        "dp=2,zero=1,microbatches=2",
        "dp=2,zero=2,microbatches=2,recompute=2",
        "dp=2,zero=3,recompute=full",
        "dp=2,precision=bf16",
        "dp=2,zero=3,precision=fp16",
        "dp=2,zero=3,offload=cpu,microbatches=2",
        "dp=2,bn=deferred,microbatches=2",
        "dp=2,bn=sync,microbatches=2,recompute=full",
        "pp=2",
        "pp=2,schedule=gpipe,microbatches=4,recompute=full",
        "pp=2,schedule=interleaved,microbatches=4",
        "pp=2,schedule=interleaved,stages=4,recompute=2",
        "pp=2,schedule=zbv,microbatches=4",
        "tp=2",
        "tp=2,recompute=full,microbatches=2",
        "tp=2,sp=on,precision=bf16",
        "tp=2,sp=on",
        "tp=2,sp=on,recompute=full",
        "cp=2",
        "cp=2,recompute=full,microbatches=2",
        "cp=2,precision=bf16",
    ),
    4: (
        "dp=4,zero=3,shard=2",
        "dp=2,pp=2,bn=sync",
        "dp=2,pp=2,zero=1,schedule=gpipe,microbatches=1",
        "dp=2,pp=2,zero=3,schedule=interleaved",
        "dp=2,pp=2,schedule=zbv,sync=blocking,microbatches=4",
        "dp=2,pp=2,schedule=zbv,zero=1",
        "pp=4,schedule=gpipe,microbatches=2",
        "pp=4,schedule=zbv",
        "dp=2,tp=2",
        "dp=2,tp=2,zero=3,microbatches=2",
        "dp=2,tp=2,sp=on,zero=1",
        "pp=2,tp=2,schedule=interleaved,recompute=full",
        "pp=2,tp=2,schedule=zbv",
        "pp=2,tp=2,sp=on",
        "dp=2,tp=2,zero=1,offload=cpu",
        "cp=4",
        "dp=2,cp=2",
        "dp=2,cp=2,zero=3,microbatches=2",
        "cp=2,tp=2",
        "pp=2,cp=2,recompute=2",
        "tp=4,tensor=2d",
        "tp=4,tensor=2d,recompute=full,microbatches=2",
        "tp=4,tensor=2d,precision=bf16",
    ),
    8: (
        "dp=4,pp=2,zero=3,shard=2",
        "dp=2,pp=2,tp=2,zero=3",
        "dp=2,pp=2,tp=2,sp=on,schedule=zbv,sync=blocking",
        "dp=2,pp=2,cp=2,schedule=gpipe",
        "tp=8,tensor=2.5d",
        "tp=8,tensor=3d",
        "tp=8,tensor=2.5d,recompute=full,precision=bf16",
        "tp=8,tensor=3d,recompute=full,precision=bf16,microbatches=2",
        "dp=2,tp=4,tensor=2d,sync=blocking,microbatches=2",
        "pp=2,tp=4,tensor=2d",
        "pp=2,tp=4,tensor=2d,schedule=zbv,microbatches=4",
    ),
}
# What these do, they do to layers, and the layers of BERT on pairs are those of BERT.
LEFT_OUT = {
    "bert_pairs": {
        "dp=2,zero=3,offload=cpu,microbatches=2",
        "tp=2,recompute=full,microbatches=2",
        "dp=2,pp=2,zero=1,schedule=gpipe,microbatches=1",
        "dp=2,tp=2",
        "pp=4,schedule=gpipe,microbatches=2",
        "dp=2,tp=2,zero=1,offload=cpu",
        "dp=4,pp=2,zero=3,shard=2",
        "dp=2,pp=2,tp=2,zero=3",
        *(plan for plans in PLANS.values() for plan in plans if "tensor=" in plan),
    },
    "bert_tied": {"tp=8,tensor=2.5d", "tp=8,tensor=3d"},  # the tie is outside of the regions
}
BF16_GRADIENTS = (
    "vit:dp=2,gradients=bf16",
    "vit:dp=2,gradients=bf16,sync=blocking",
    "vit:dp=2,gradients=bf16,zero=2",
)
# The units of each stage, which no other test of plans cuts by anything but the default.
CUT = {
    2: {
        "resnet:pp=2,cuts=1,microbatches=4": [1, 7],
        "resnet:pp=2,cut=parameters,recompute=2": [6, 2],
        "resnet:pp=2,schedule=zbv,cut=ampa,microbatches=2": [2, 2, 1, 3],
        "vit:pp=2,cut=uniform": [2, 2],
        "vgg:pp=2,cuts=7": [7, 1],
        "vgg:pp=2,schedule=interleaved,cut=ampa": [1, 1, 1, 5],
    },
    3: {
        "vgg:pp=3,cut=prefix_nearest,schedule=gpipe,microbatches=2": [2, 1, 5],
        "resnet:pp=3,cuts=1-2": [1, 1, 6],
    },
}
# Beside these: models with dropout, samples of different lengths, and numbers of ranks that are no
# power of two.
MORE = {
    1: (
        "dropout_adamw:microbatches=2,recompute=full",
        "bert_lengths:microbatches=4,recompute=full",
    ),
    2: (
        "dropout_adamw:dp=2,zero=3,recompute=full",
        "dropout_adamw:pp=2,schedule=interleaved,stages=3,recompute=2",
        "dropout_adamw:tp=2,sp=on",
        "dropout_adamw:tp=2,sp=on,recompute=full,microbatches=2",
        "dropout_lamb:dp=2,sync=blocking,microbatches=2",
        "vit:dp=2,precision=tf32",
        *BF16_GRADIENTS,
        *CUT[2],
        "bert:dp=2,zero=2,precision=bf16,gradients=bf16,microbatches=2",
        "vit:dp=2,zero=3,precision=bf16,recompute=full",
        "bert_tied:pp=2,cut=parameters,schedule=gpipe,microbatches=2",
        "bert_tied:dp=2,zero=1,gradients=bf16",
        "dropout_lamb:pp=2,schedule=zbv,microbatches=4",
        "dropout_lamb:tp=2,recompute=full",
        "bert_lengths:dp=2,microbatches=2",
        "bert_lengths:dp=2,balance=tokens",
        "bert_lengths:dp=2,balance=tokens,zero=3,recompute=full,microbatches=2",
        "bert_lengths:pp=2,schedule=interleaved,recompute=2",
        "bert_lengths:pp=2,schedule=zbv,microbatches=4",
        "bert_lengths:tp=2,recompute=full",
        "dropout_adamw:cp=2,microbatches=2",
        "dropout_lamb:cp=2,recompute=full",
        "dropout_lars:cp=2",
        "vit:cp=2,precision=fp16",
    ),
    3: (
        *CUT[3],
        "resnet:dp=3,bn=sync,microbatches=2",
        "resnet:pp=3,schedule=zbv,microbatches=6",
        "vgg:pp=3,schedule=gpipe,microbatches=2",
        "vit:dp=3,zero=3,microbatches=2",
        "bert:pp=3,microbatches=4",
        "bert:pp=3,schedule=interleaved,microbatches=4",  # no multiple of the ranks, as below
        "resnet:pp=3,schedule=interleaved,microbatches=8,bn=deferred",
        "dropout_adamw:tp=3,sp=on",
        "dropout_adamw:cp=3",
        "dropout_lamb:dp=3,zero=2,microbatches=2",
        "bert_tied:pp=3,microbatches=4",
        "bert_tied_lamb:dp=3,zero=3",
        "bert_tied_adamw:pp=3,schedule=zbv,microbatches=6",
    ),
    4: (
        "dropout_adamw:dp=2,pp=2,zero=1,schedule=gpipe",
        "dropout_adamw:dp=2,tp=2,sp=on,zero=1",
        "vit:dp=2,tp=2,gradients=bf16",
        "vit:dp=2,tp=2,sp=on,zero=3,precision=bf16,microbatches=2",
        "bert:dp=2,pp=2,zero=1,precision=bf16,schedule=zbv",
        "dropout_lamb:dp=2,tp=2,zero=3,recompute=full",
        "dropout_lamb:pp=2,tp=2,sp=on,order=tp-pp-dp",
        "vit:dp=2,tp=2,zero=3,order=tp-pp-dp",
        "bert_lengths:dp=4,balance=tokens,zero=1",
        "bert_lengths:dp=2,pp=2,balance=tokens",
        "bert_lengths:dp=2,tp=2,balance=tokens",
        "vit:dp=2,cp=2,sync=blocking,gradients=bf16",
        "vit:pp=2,cp=2,schedule=interleaved,recompute=full",
        "dropout_lars:cp=4",
        "dropout_lamb:cp=2,tp=2",
        "dropout_adamw:dp=2,cp=2,zero=3,order=tp-pp-dp",
        "dropout_adamw:tp=4,tensor=2d,recompute=full",
        "dropout_lars:tp=4,tensor=2d,microbatches=2",
    ),
    6: (
        "resnet:dp=3,pp=2,bn=sync",
        "vgg:dp=6,zero=1,shard=3",
        "vit:dp=3,tp=2,sp=on,zero=1",
        "bert:dp=2,pp=3,schedule=zbv,zero=1",
        "dropout_adamw:dp=3,tp=2,sp=on,zero=3",
        "dropout_lamb:pp=2,tp=3,sp=on,order=tp-dp-pp",
        "bert_tied_lamb:dp=3,pp=2,zero=1",
    ),
    8: (
        "dropout_adamw:dp=2,pp=2,tp=2,sp=on,schedule=zbv,sync=blocking",
        "bert_tied_lamb:dp=2,pp=4,order=dp-pp-tp",
        "bert_tied_lamb:dp=2,cp=2,tp=2,zero=1,recompute=full",
        "vit:dp=4,cp=2,zero=3,shard=2",
        "dropout_adamw:tp=8,tensor=3d,recompute=full",
        "dropout_adamw:tp=8,tensor=2.5d",
        "dropout_lamb:tp=8,tensor=3d",
        "dropout_lamb:tp=8,tensor=2.5d",
        "dropout_lars:tp=8,tensor=3d",
        "dropout_lars:tp=8,tensor=2.5d,microbatches=3",
        "bert_tied_lamb:pp=2,tp=4,tensor=2d,schedule=interleaved,recompute=full",
        "dropout_lamb:pp=2,tp=4,tensor=2d,schedule=gpipe,order=tp-pp-dp",
    ),
}
COMPILER = shutil.which("g++")
COMPILED = {2: ("vit:tp=2,sp=on,compile=on", "dropped_mlp:tp=2,compile=on") if COMPILER else ()}
SLOW = {"vit:tp=2,sp=on,compile=on"}  #: as twenty others; the other one is compiled, too
AGAIN = {  #: run a second time
    2: ("resnet:dp=2", "vit:pp=2", "dropout_lars:cp=2"),
    4: ("bert:dp=2,tp=2", "dropout_adamw:tp=4,tensor=2d,recompute=full"),
}


def items(ranks: int) -> list[str]:
    """Return what a world of ``ranks`` runs, as ``family:plan``."""
    fitting = [
        f"{name}:{plan}"
        for name, family in FAMILIES.items()
        for plan in PLANS.get(ranks, ())
        if family.filled
        and not family.dropout
        and plan not in LEFT_OUT.get(name, ())
        and family.takes(ParallelPlan.parse(plan))
    ]
    return [*fitting, *MORE[ranks], *COMPILED.get(ranks, ()), *AGAIN.get(ranks, ())]


def facts(case: tuple[*tuple[int, ...], str]) -> set[Fact]:
    if case[-1] in SLOW:
        return set()
    family, _, plan = case[-1].partition(":")
    own = plan_facts(ParallelPlan.parse(plan))
    if family.startswith("bert_tied_"):  # what optimizers make of ties depends on these
        return {("family", family), *((name, value) for name, value in own if name in _SHARING)}
    return {("family", family), *own}


_SHARING = ("pp", "tp", "zero")
EVERY = [(ranks, number, item) for ranks in MORE for number, item in enumerate(items(ranks))]
CASES = in_tiers(EVERY, facts)


class Worlds:
    """Worlds of ranks, each started once, when first asked for; they run the selected items."""

    def __init__(self, folder: Path, selected: Sequence[dict[str, Any]]) -> None:
        self._folder = folder
        self._failed = set[int]()
        self._selected = {(each["ranks"], each["item"]) for each in selected if "item" in each}

    def found(self, ranks: int, number: int) -> list[dict[str, Any]]:
        """Return what each rank has after an item."""
        folder = self._folder / str(ranks)
        assert ranks not in self._failed, "this world failed before"
        if not folder.exists():
            folder.mkdir()
            self._failed.add(ranks)
            own = {n: item for r, n, item in EVERY if r == ranks and (r, item) in self._selected}
            run_world(folder, ranks, own)
            self._failed.remove(ranks)
        return found(folder, ranks, number)


@pytest.fixture(scope="module")
def worlds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    return Worlds(tmp_path_factory.mktemp("worlds"), selected(request))


@pytest.mark.skipif(COMPILER is None, reason="there is no g++ to compile with")
def test_a_compiled_plan_is_among_them() -> None:
    assert any("compile=on" in item for _, _, item in EVERY)


@pytest.mark.parametrize(("ranks", "number", "item"), CASES)
def test_a_plan_computes_what_one_process_does_and_reports_its_time(
    worlds: Worlds, ranks: int, number: int, item: str
) -> None:
    plan, parts = ParallelPlan.parse(item.partition(":")[2]), worlds.found(ranks, number)

    assert_computed(item, parts)
    assert_parts_of_time(plan, parts[0]["statistics"])
    assert_timeline(plan, parts[0]["statistics"]["timeline"])


@pytest.mark.exhaustive
def test_random_plans_compute_what_one_process_does(tmp_path: Path) -> None:
    random = dict(enumerate(drawn()))
    assert len(random) == BUDGET

    run_world(tmp_path, RANKS, random)

    for number, item in random.items():
        assert_computed(item, found(tmp_path, RANKS, number))


@pytest.mark.parametrize(
    ("ranks", "item", "sizes"),
    [(ranks, item, sizes) for ranks, some in CUT.items() for item, sizes in some.items()],
)
def test_stages_are_cut_as_the_plan_says_and_the_log_states_them(
    worlds: Worlds, ranks: int, item: str, sizes: list[int]
) -> None:
    plan = ParallelPlan.parse(item.partition(":")[2])

    parts = worlds.found(ranks, items(ranks).index(item))

    stages = parts[0]["stages"]
    assert all(part["stages"] == stages for part in parts)
    assert [len(stage["units"]) for stage in stages] == sizes
    assert [stage["first_unit"] for stage in stages] == [sum(sizes[:n]) for n in range(len(sizes))]
    assert all(stage["forward_flops_per_sample"] >= 0 for stage in stages)
    for rank, part in enumerate(parts):
        own = {unit for stage in plan.stages_of(rank) for unit in stages[stage]["units"]}
        others = {unit for stage in stages for unit in stage["units"]} - own
        assert part["weights"]
        assert not any(name.startswith(f"{unit}.") for name in part["weights"] for unit in others)


@pytest.mark.parametrize(("ranks", "item"), in_tiers(((2, item) for item in BF16_GRADIENTS), facts))
def test_gradients_are_exchanged_in_bf16(worlds: Worlds, ranks: int, item: str) -> None:
    (found, _) = worlds.found(ranks, items(ranks).index(item))

    for name, gradient in found["gradients"].items():
        assert gradient.dtype == torch.float32
        assert torch.equal(gradient.bfloat16().float(), gradient), name


@pytest.mark.parametrize(
    ("ranks", "item"), [(r, item) for r, some in AGAIN.items() for item in some]
)
def test_the_same_plan_and_seed_are_bitwise_reproducible(
    worlds: Worlds, ranks: int, item: str
) -> None:
    numbers = [number for number, each in enumerate(items(ranks)) if each == item]

    first, again = (worlds.found(ranks, number) for number in numbers)

    for one, other in zip(first, again, strict=True):
        assert one["statistics"]["loss"] == other["statistics"]["loss"]
        for name, value in one["weights"].items():
            assert torch.equal(value, other["weights"][name])


def assert_parts_of_time(plan: ParallelPlan, statistics: dict[str, Any]) -> None:
    axes = {"replica": plan.dp, "stage": plan.pp, "context": plan.cp, "tensor": plan.tp}
    places = [tuple(stage.get(axis, 0) for axis in axes) for stage in statistics["stages"]]
    assert places == list(itertools.product(*map(range, axes.values())))
    assert all(stage["compute_s"] > 0 for stage in statistics["stages"])
    assert 0 <= statistics["bubble"] < 1
    exposed = statistics["exposed_communication"]
    assert (exposed is None) == (plan.zero > 0 or plan.tp > 1 or plan.cp > 1)
    assert exposed is None or (exposed > 0) == (plan.dp > 1)
    assert statistics["loader_samples_per_s"] > 0
    assert statistics["compute_samples_per_s"] > 0


def assert_timeline(plan: ParallelPlan, timeline: list[dict[str, Any]]) -> None:
    assert [each["rank"] for each in timeline] == list(range(plan.pp))
    microbatches, last = range(plan.microbatches), plan.pipeline_stages - 1
    stops: dict[tuple[Any, ...], float] = {}
    for rank in timeline:
        actions = rank["actions"]
        assert actions[-1][0] == "update"
        times = [at for *_, start, stop in actions for at in (start, stop)]
        assert times == sorted(times), "a rank does one thing after another"
        passes = {(kind, stage, microbatch) for kind, _, stage, microbatch, *_ in actions[:-1]}
        assert len(passes) == len(actions) - 1
        stages = plan.stages_of(rank["rank"])
        for kind in ("forward", "backward"):
            own = {each[1:] for each in passes if each[0] in {kind, f"{kind} of inputs"}}
            assert own == set(itertools.product(stages, microbatches))
        stops |= {tuple(each[:4]): each[-1] for each in actions}
    for (kind, step, stage, microbatch), stop in stops.items():
        if kind == "forward" and stage > 0:
            assert stop > stops[kind, step, stage - 1, microbatch]
        if kind == "backward" and stage < last:
            after = stops.get(("backward", step, stage + 1, microbatch))
            assert after is None or stop > after
