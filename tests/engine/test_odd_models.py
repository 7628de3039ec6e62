"""What real models have and the families have not: every plan computes what one process does."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn

from hybridperf.errors import ExitCode, UserError
from hybridperf.plan import ParallelPlan
from hybridperf_reference.engine.chain import Unit
from hybridperf_reference.engine.mesh import Mesh
from hybridperf_reference.engine.trainer import Trainer
from hybridperf_reference.transformer import FeedForward
from tests.engine.compare import assert_computed, found, run_world
from tests.engine.families import SEED
from tests.engine.odd_models import CLASSES, ODD, ROWS, WIDTH, dense, flat, odd
from tests.tiers import in_tiers, plan_facts, selected

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.tiers import Fact

# What is used depends on data or chance; the parameters that take part do not.
ROUTED = ("experts", "either", "layer_drop")
ROUTED_PLANS = (
    "dp=2",
    "dp=2,microbatches=3",
    "dp=2,sync=blocking",
    "dp=2,zero=1,microbatches=2",
    "dp=2,zero=2,microbatches=2,recompute=2",
    "dp=2,zero=3,recompute=full",
    "pp=2,microbatches=3",
    "pp=2,schedule=zbv,microbatches=4",
)
ITEMS = {
    1: (
        "tied:microbatches=3,recompute=full",
        "thrice_lamb:microbatches=2",
        "frozen:recompute=full",
        "bare:microbatches=2",
        "activated:microbatches=4,bn=deferred,recompute=full",
        "without_scale:microbatches=3,bn=deferred",
        "cumulative:microbatches=3,bn=deferred,recompute=full",
        "buffers:microbatches=2,recompute=full",
        "unused:microbatches=2",
        "targets:microbatches=4",
        "dropped:microbatches=2,recompute=full,bn=deferred",
        "frozen_adamw:microbatches=2",
        "unused_lamb:recompute=full",
        "experts_adamw:microbatches=2",
        "either_lamb:microbatches=4,recompute=full",
        "norm_drop:microbatches=2,bn=deferred,recompute=full",
    ),
    2: (
        "tied:dp=2",
        "tied:dp=2,sync=blocking,microbatches=2",
        "tied:dp=2,zero=1",
        "tied:pp=2,cuts=3",
        "tied_adamw:pp=2,cuts=2,schedule=gpipe,microbatches=3",
        "tied_lamb:dp=2,zero=3,recompute=full",
        "thrice:dp=2,zero=3,microbatches=2",
        "thrice_adamw:dp=2",
        "thrice:pp=2,cuts=3",
        "thrice:pp=2,cuts=2-4-6,schedule=interleaved,microbatches=4,recompute=full",
        "thrice:pp=2,schedule=interleaved,stages=4",
        "thrice_lamb:pp=2,cuts=2-4-6,schedule=zbv,microbatches=4",
        "thrice_lars:dp=2,zero=1",
        "shared_norms:dp=2,zero=2",
        "shared_norms:pp=2,cuts=2",
        "shared_norms:tp=2",
        "shared_norms_lamb:tp=2,sp=on",
        "mixed:tp=2",
        "frozen:dp=2",
        "frozen:dp=2,zero=1",
        "frozen:dp=2,zero=3,microbatches=2",
        "frozen:pp=2",
        "frozen:pp=2,schedule=zbv,microbatches=3",
        "bare:dp=2",
        "bare:dp=2,zero=3",
        "bare:pp=2,schedule=interleaved,microbatches=3",
        "bare:pp=2,schedule=zbv",
        "activated:dp=2,bn=sync",
        "activated:dp=2,bn=deferred,microbatches=2,recompute=full",
        "activated:pp=2,bn=deferred,schedule=gpipe,microbatches=3",
        "without_scale:dp=2,bn=sync,microbatches=2",
        "without_scale:dp=2",
        "cumulative:dp=2,bn=sync,recompute=full",
        "cumulative:dp=2",
        "buffers:dp=2,recompute=full",
        "buffers:pp=2,recompute=2",
        "unused:dp=2",
        "unused:dp=2,microbatches=2",
        "unused:dp=2,sync=blocking",
        "unused:dp=2,zero=2",
        "unused:pp=2",
        "scaled:dp=2",
        "scaled:dp=2,zero=1,microbatches=2",
        "scaled:dp=2,zero=3,recompute=full",
        "scaled:pp=2,recompute=full",
        "integers:pp=2",
        "integers:pp=2,cuts=2",
        "integers:dp=2,zero=3",
        "targets:dp=2",
        "targets:dp=2,sync=blocking,microbatches=2",
        "targets:dp=2,zero=1,microbatches=2",
        "targets:pp=2,schedule=zbv,microbatches=4",
        "unequal:pp=2",
        "encoders:tp=2,sp=on",
        "transposed:pp=2,schedule=zbv",
        "transposed:pp=2",
        "tied_adamw:dp=2,sync=blocking",
        "tied_lamb:dp=2",
        "frozen_adamw:dp=2,zero=2",
        "frozen_lamb:pp=2",
        "bare_lars:pp=2,schedule=zbv",
        "bare_adamw:pp=2,schedule=interleaved,microbatches=3",
        "activated_lars:dp=2,bn=sync",
        "buffers_lamb:dp=2",
        "unused_adamw:dp=2",
        "unused_adamw:dp=2,zero=3",
        "unused_lamb:dp=2,sync=blocking",
        "scaled_lamb:dp=2,zero=1",
        "scaled_lars:pp=2",
        "integers_adamw:dp=2,zero=3",
        "targets_lamb:dp=2,zero=2,microbatches=2",
        "encoders_lars:tp=2,sp=on",
        "transposed_lars:pp=2",
        "dropped_adamw:dp=2,zero=1,microbatches=2",
        "dropped:dp=2",
        "dropped_lamb:pp=2,schedule=interleaved,microbatches=4,bn=deferred,recompute=full",
        "dropped_encoders_lamb:tp=2,sp=on",
        *(f"{model}:{plan}" for model in ROUTED for plan in ROUTED_PLANS),
        "either_adamw:dp=2,zero=1",
        "either_lamb:dp=2,sync=blocking",
        "either_lars:dp=2,zero=3,microbatches=2",
        "layer_drop_lamb:dp=2,zero=2",
        "norm_drop:pp=2,bn=deferred,microbatches=2",
        "experts_lars:dp=2",
        "routed_encoders:tp=2,sp=on",
        "shared_norms:cp=2",
        "routed_encoders:cp=2",
        "tied_encoders:cp=2",
        "encoders_lars:cp=2",
        "large:dp=2",
    ),
    3: (
        "tied:dp=3",
        "tied_lamb:pp=3,cuts=2-3,microbatches=4",
        "thrice_lamb:dp=3,zero=3",
        "thrice:pp=3,schedule=zbv,cuts=1-2-3-5-6,microbatches=6",
        "frozen:pp=3",
        "bare:pp=3,schedule=gpipe,microbatches=4",
        "activated:dp=3,bn=sync",
        "targets:dp=3,zero=3",
        "unequal:pp=3,microbatches=4",
        "encoders:tp=3,sp=on",
        "transposed:pp=3,microbatches=6",
        "frozen_lamb:pp=3",
        "unused_adamw:dp=3,zero=1",
        "dropped_lars:dp=3",
        "dropped_encoders_adamw:tp=3",
        "experts:pp=3,microbatches=6",
        "either:dp=3,zero=2,microbatches=2",
    ),
    4: (
        "tied_adamw:dp=2,pp=2,cuts=2",
        "tied_lamb:dp=2,pp=2,cuts=3,zero=1",
        "thrice:pp=4,cuts=2-4-6,microbatches=4",
        "thrice_adamw:dp=2,pp=2,cuts=2-4-6,schedule=interleaved,microbatches=2",
        "thrice_lamb:pp=4,schedule=zbv,microbatches=8",
        "thrice_lamb:dp=2,pp=2,cuts=4,zero=3",
        "shared_norms_adamw:dp=2,tp=2,sp=on,zero=1",
        "shared_norms:pp=2,tp=2,sp=on,cuts=2",
        "frozen:dp=2,pp=2",
        "frozen:pp=4,schedule=gpipe,microbatches=2",
        "bare:dp=2,pp=2",
        "activated:dp=4,bn=sync,zero=3,shard=2",
        "unused:dp=2,pp=2",
        "integers:dp=2,pp=2,schedule=gpipe",
        "targets:dp=2,pp=2,schedule=zbv,zero=1",
        "targets:dp=4,zero=3,shard=2,microbatches=2",
        "encoders:dp=2,tp=2,sp=on",
        "encoders:tp=4,tensor=2d",
        "transposed:dp=2,pp=2",
        "frozen_lars:dp=2,pp=2",
        "scaled_adamw:dp=4,zero=3,shard=2",
        "dropped_lamb:dp=2,pp=2,bn=deferred",
        "dropped_encoders_lamb:dp=2,tp=2,zero=3",
        "experts:dp=4,zero=3,shard=2",
        "either:dp=2,pp=2,microbatches=3",
        "either:dp=2,pp=2,zero=3,microbatches=2",
        "experts:dp=2,pp=2,schedule=zbv,zero=1,microbatches=4",
        "layer_drop_adamw:dp=2,pp=2,schedule=interleaved,microbatches=2,zero=1",
        "routed_encoders:dp=2,tp=2,sp=on",
        "shared_norms_adamw:dp=2,cp=2,zero=1",
        "shared_norms:pp=2,cp=2,cuts=2",
        "encoders_lars:dp=2,cp=2,microbatches=3",
        "routed_encoders:dp=2,tp=2,sync=blocking",
    ),
    6: (
        "bare:dp=3,pp=2",
        "activated:dp=6,bn=sync",
        "targets:dp=3,pp=2,sync=blocking",
        "encoders:dp=2,tp=3",
        "encoders:tp=6",
        "bare_lamb:dp=3,pp=2",
        "dropped_encoders_adamw:tp=6",
        "unused_lars:dp=6,zero=2",
        "experts:dp=3,pp=2",
        "either:dp=3,pp=2",
        "layer_drop:dp=3,pp=2,sync=blocking,microbatches=2",
        "either:dp=6,zero=1,shard=3",
    ),
    8: (
        "thrice_lamb:dp=2,pp=4,cuts=2-4-6,zero=1",
        "shared_norms:dp=2,pp=2,tp=2,sp=on,cuts=2",
        "frozen:dp=4,pp=2,zero=1",
        "targets:dp=4,pp=2",
        "encoders:dp=2,pp=2,tp=2,sp=on",
        "frozen_adamw:dp=4,pp=2",
        "dropped_encoders_lars:dp=2,pp=2,tp=2,sp=on,sync=blocking",
    ),
}
HERE = Mesh(torch.device("cpu"), None)


def facts(case: tuple[int, str]) -> set[Fact]:
    """Return the traits of the model, whatever trains it, and of the plan."""
    model, _, plan = case[1].partition(":")
    traits = {("model", trait) for trait in {*model.split("_")} - {"adamw", "lamb", "lars"}}
    return traits | plan_facts(ParallelPlan.parse(plan))


CASES = in_tiers([(ranks, item) for ranks in ITEMS for item in ITEMS[ranks]], facts)


@pytest.fixture(scope="module")
def worlds(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], Path]:
    """Return what runs the selected items of so many ranks once, and returns the folder."""

    @functools.cache
    def run(ranks: int) -> Path:
        folder = tmp_path_factory.mktemp("world")
        own = {each.get("item") for each in selected(request)}
        items = {n: item for n, item in enumerate(ITEMS[ranks]) if item in own}
        run_world(folder, ranks, items)
        return folder

    return run


@pytest.mark.parametrize(("ranks", "item"), CASES, ids=str)
def test_an_odd_model_is_trained_as_in_one_process(
    worlds: Callable[[int], Path], ranks: int, item: str
) -> None:
    assert_computed(item, found(worlds(ranks), ranks, ITEMS[ranks].index(item)))


REFUSED = {
    "tied:pp=2,schedule=1f1b,microbatches=2,staleness=1": "no staleness with pp where units share",
    "tied:dp=2,zero=3,offload=cpu": "no offload where units share a parameter",
    "tied_encoders:tp=2": "split linear layers of unit 'u1' to share no weights",
    "tied_biases:tp=2,sp=on": "split linear layers of unit 'u1' to share no weights",
    "mixed:tp=2,sp=on": "all units that share 'u0.0.1.bias' to split tokens, or none",
    "mixed:cp=2": "all units that share 'u0.0.1.bias' to split tokens, or none",
    "bare:microbatches=2,bn=deferred": "BatchNorm in the model where bn is given",
    "bare:tp=2": "a model that declares linear layers to split for tp",
    "routed_encoders:tp=4,tensor=2d": "only linear layers to split and LayerNorm over all features "
    "under tensor=2d, found u1.1.gate; use tensor=1d",
    "shared_norms:tp=4,tensor=2d": "no shared parameters in unit 'u1' under tensor=2d",
    "encoders:tp=25,tensor=2d": "5 to divide the 12 heads or features that the model splits",
    "encoders:tp=4": "unit 'u1' to run with a part of its features",
    "integers:pp=2,schedule=1f1b,cuts=1,microbatches=2": "found 1, before unit 'u1'; choose from 2",
    "integers:pp=2,schedule=1f1b,cuts=4,microbatches=2": "cuts below 4, the number of units",
    "integers:pp=4": "at most 3 stages, between which units pass floating-point numbers",
}


@pytest.mark.parametrize("item", REFUSED)
def test_a_plan_that_does_not_fit_the_chain_is_refused(item: str) -> None:
    """Whatever the task declares: it says of these what is not so."""
    name, _, text = item.partition(":")
    plan = ParallelPlan.parse(text)

    with pytest.raises(UserError, match=REFUSED[item]) as refusal:
        Trainer(ODD[name].chain(), ODD[name].task(), plan, HERE, SEED)

    assert "\n" not in str(refusal.value)
    assert json.dumps(text)[1:-1] in str(refusal.value) or "pp=4" in text


class Pair(nn.Module):
    """Return two tensors, as attention with its weights does."""

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return inputs, inputs


def test_tokens_that_no_ring_mixes_are_not_split() -> None:
    unit = Unit("u1", FeedForward(ROWS, WIDTH), {"inner": "column", "outer": "row"})
    model = odd(lambda: [nn.Flatten(1, 2), unit, flat(), dense(CLASSES)], tensor_sizes=(WIDTH,))
    plan = ParallelPlan.parse("cp=2")
    expected = "unit 'u1' to mix tokens by a module's function `attend` only, found none; drop cp"

    with pytest.raises(UserError, match=expected):
        Trainer(model.chain(), model.task(), plan, HERE, SEED)


def test_units_with_copies_have_modules_of_their_own() -> None:
    shared = nn.Linear(WIDTH, WIDTH)
    model = odd(lambda: [flat(), shared, nn.Tanh(), shared, dense(CLASSES)])
    plan = ParallelPlan.parse("pp=2")
    expected = "modules of their own, found one Linear in 'u1' and 'u3'; make two modules"

    with pytest.raises(UserError, match=expected):
        Trainer(model.chain(), model.task(), plan, HERE, SEED)


@pytest.mark.parametrize(
    ("module", "what"),
    [
        (Pair(), "to return one tensor, found tuple"),
        (nn.LSTM(WIDTH, WIDTH), "to return one tensor, found tuple"),
        (nn.ReLU(inplace=True), "to leave its input unchanged, found an in-place operation on it"),
        (
            nn.Sequential(nn.Dropout(0.1, inplace=True), nn.Linear(WIDTH, WIDTH)),  # in training
            "to leave its input unchanged, found an in-place operation on it",
        ),
    ],
    ids=["tuple", "LSTM", "in place", "in place in training"],
)
def test_a_unit_that_breaks_the_contract_is_refused_by_its_name(
    module: nn.Module, what: str
) -> None:
    model = odd(lambda: [flat(), module, dense(CLASSES)])

    with pytest.raises(UserError, match=f"unit 'u1': expected its forward {what}; let ") as refusal:
        Trainer(model.chain(), model.task(), ParallelPlan(), HERE, SEED)

    assert refusal.value.exit_code is ExitCode.USAGE


def test_a_unit_may_work_in_place_on_what_is_its_own() -> None:
    own = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), nn.Dropout(0.1, True))
    model = odd(lambda: [flat(), own, dense(CLASSES)])

    Trainer(model.chain(), model.task(), ParallelPlan(), HERE, SEED)


def test_a_model_without_trainable_parameters_is_refused() -> None:
    chain = ODD["bare"].chain()
    for unit in chain.units:
        unit.module.requires_grad_(requires_grad=False)

    with pytest.raises(UserError, match="a model with parameters to train, found none"):
        Trainer(chain, ODD["bare"].task(), ParallelPlan(), HERE, SEED)
