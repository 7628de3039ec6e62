"""Whole activations are dropped alike by a tp group; all others draw numbers of their own."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hybridperf.plan import ParallelPlan
from hybridperf_reference.engine.chain import Unit, copy_to
from hybridperf_reference.engine.mesh import Mesh
from hybridperf_reference.engine.parallelize import apply_recompute
from hybridperf_reference.engine.rng import RngStreams, draws_random_numbers

if TYPE_CHECKING:
    from collections.abc import Callable

ONES = torch.ones(1, 64)


class Applied(nn.Module):
    """A unit that is a function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, inputs: Tensor) -> Tensor:
        return self.function(inputs)


def masks(
    *,
    seed: int = 3,
    step: int = 0,
    replica: int = 0,
    tp_rank: int = 0,
    unit: int = 0,
    cp_rank: int | None = None,
    has_part: bool = False,
) -> list[Tensor]:
    """Return what the passes of two micro-batches through a unit drop: whole, split, whole.

    With ``cp_rank`` under ``cp=2``, where the unit ``has_part`` of a sample's tokens, or all.
    """
    mesh = Mesh(torch.device("cpu"), None, replica=replica, tp_rank=tp_rank, cp_rank=cp_rank or 0)
    plan = ParallelPlan(microbatches=2, cp=1 if cp_rank is None else 2)
    streams = RngStreams(seed, plan, mesh)

    def drop(inputs: Tensor) -> Tensor:
        regions = [functional.dropout(inputs)]
        streams.enter(split=True)
        regions.append(functional.dropout(inputs))
        streams.enter(split=False)
        regions.append(functional.dropout(inputs))
        return torch.cat(regions)

    module = Applied(drop)
    streams.seed_passes({unit: module}, split=[unit] if has_part else [])
    streams.count_passes({unit: module})
    streams.begin_step(step)
    return [mask for _ in range(2) for mask in module(ONES).split(1)]


def test_ranks_of_a_tp_group_share_dropout_masks_of_replicated_activations_only() -> None:
    first, second = masks(tp_rank=0), masks(tp_rank=1)

    assert [torch.equal(*pair) for pair in zip(first, second, strict=True)] == [
        True,
        False,
        True,
    ] * 2


def test_ranks_of_a_cp_group_share_dropout_masks_of_units_with_all_tokens_only() -> None:
    whole = [masks(cp_rank=cp_rank) for cp_rank in (0, 1)]
    drawn = [
        mask
        for cp_rank, tp_rank in itertools.product((0, 1), (0, 1))
        for mask in masks(cp_rank=cp_rank, tp_rank=tp_rank, has_part=True)
    ]

    assert all(map(torch.equal, *whole))
    assert all(map(torch.equal, whole[0], masks()))
    equal = [torch.equal(one, other) for one, other in itertools.combinations(drawn, 2)]
    assert sum(equal) == 2 * 2 * 2, "two regions of two micro-batches are whole in each tp group"


def test_each_region_micro_batch_unit_replica_step_and_seed_has_its_own_masks() -> None:
    drawn = [
        *masks(),
        *masks(seed=4),
        *masks(step=1),
        *masks(replica=1),
        *masks(unit=1),
        masks(tp_rank=1)[1],
    ]

    assert not any(torch.equal(one, other) for one, other in itertools.combinations(drawn, 2))


def test_two_replicas_have_the_masks_of_one_with_twice_the_micro_batches() -> None:
    plan, mesh = ParallelPlan(microbatches=4), Mesh(torch.device("cpu"), None)
    streams, module = RngStreams(3, plan, mesh), Applied(functional.dropout)
    streams.seed_passes({0: module}, split=[])
    streams.count_passes({0: module})
    streams.begin_step(0)

    one = [module(ONES) for _ in range(4)]

    two = [mask for replica in range(2) for mask in masks(replica=replica)[::3]]
    assert all(map(torch.equal, one, two))


def test_the_masks_of_a_step_do_not_depend_on_earlier_draws() -> None:
    first = masks(step=5)
    torch.rand(1000)

    assert all(map(torch.equal, first, masks(step=5)))


def test_recomputation_repeats_the_masks_of_the_first_pass() -> None:
    streams = RngStreams(3, ParallelPlan(microbatches=2), Mesh(torch.device("cpu"), None))
    module = Applied(functional.dropout)
    streams.seed_passes({0: module}, split=[])
    apply_recompute([Unit("unit", module)], every=1)
    streams.count_passes({0: module})
    streams.begin_step(0)
    inputs = [ONES.clone().requires_grad_() for _ in range(2)]

    outputs = [module(each) for each in inputs]
    for output in outputs:
        output.sum().backward()

    assert not torch.equal(*outputs)
    for each, output in zip(inputs, outputs, strict=True):
        assert each.grad is not None
        assert torch.equal(each.grad, output)


def test_evaluation_does_not_seed_the_generator() -> None:
    streams = RngStreams(3, ParallelPlan(), Mesh(torch.device("cpu"), None))
    module = nn.Dropout().eval()
    streams.seed_passes({0: module}, split=[])
    streams.count_passes({0: module})
    before = torch.get_rng_state()

    assert torch.equal(module(ONES), ONES)
    assert torch.equal(torch.get_rng_state(), before)


def _attend(inputs: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(inputs, inputs, inputs, dropout_p=0.1)


@pytest.mark.parametrize(
    ("module", "draws"),
    [
        (nn.Linear(8, 8), False),
        (nn.Dropout(0.0), False),
        (nn.BatchNorm1d(4), False),
        (nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1)), True),
        (Applied(_attend), True),
        (Applied(lambda x: x + torch.rand_like(x)), True),
        (Applied(lambda x: x @ x), True),  # unknown: it cannot run
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_units_that_draw_random_numbers_are_found(
    module: nn.Module, draws: bool, device: str
) -> None:
    before = {name: value.clone() for name, value in module.state_dict().items()}

    trial, inputs = copy_to(module, torch.device(device)), torch.zeros(2, 4, 8, device=device)
    assert draws_random_numbers("unit", trial, inputs) == draws

    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_unit_that_reads_values_is_probed_on_the_cpu_only() -> None:
    module, inputs = Applied(lambda x: x * float(x.sum())), torch.zeros(2, 4, 8)

    assert not draws_random_numbers("unit", module, inputs)
    on_meta = copy_to(module, torch.device("meta"))
    assert draws_random_numbers("unit", on_meta, inputs.to("meta"))  # unknown


def test_a_unit_that_goes_another_way_in_its_trial_may_draw() -> None:
    class Either(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.plain, self.other = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.Dropout())

        def forward(self, inputs: Tensor) -> Tensor:
            outputs: Tensor = self.other(inputs) if inputs.sum() > 0 else self.plain(inputs)
            return outputs

    assert draws_random_numbers("unit", Either(), torch.zeros(2, 4, 8))
