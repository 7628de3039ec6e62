"""Copies of shared parameters: their names, and that a run ends where they are not equal."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import torch

from hybridperf.plan import ParallelPlan
from hybridperf_reference.engine.chain import Stage
from hybridperf_reference.engine.mesh import Mesh, join_ranks
from hybridperf_reference.engine.ties import (
    CopiesDifferError,
    SharedParameters,
    copy_shared_parameters,
)
from hybridperf_reference.engine.trainer import Trainer
from tests.engine.families import SEED
from tests.engine.odd_models import ODD
from tests.engine.ranks import run_ranks
from tests.engine.worlds import mesh_of

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from hybridperf_reference.engine.chain import Chain

THRICE, PAIR = "u1.weight", "u4.bias"  # the names in `thrice` of what units share
V = ParallelPlan.parse("pp=2,schedule=zbv,microbatches=4,cuts=2-4-6")
CUTS = [slice(0, 2), slice(2, 4), slice(4, 6), slice(6, 8)]


def shared_on(rank: int, chain: Chain) -> SharedParameters:
    """Return the copies that a rank of a V holds: the first one those of both of its stages."""
    mesh = Mesh(torch.device("cpu"), None, pp_rank=rank, pipelines=[[0, 1]])
    copy_shared_parameters(chain.units[CUTS[stage]] for stage in V.stages_of(rank))
    return SharedParameters(chain.units, CUTS, plan=V, mesh=mesh)


def copy_of(chain: Chain, unit: int, name: str) -> nn.Parameter:
    return chain.units[unit].module.get_parameter(name)


def test_a_chain_finds_what_its_units_share() -> None:
    chain = ODD["thrice"].chain()

    assert [unit.shared for unit in chain.units] == [
        {},
        {"weight": THRICE},
        {},
        {"0.weight": THRICE, "2.weight": THRICE},  # twice in one unit
        {"bias": PAIR},
        {},
        {"weight": THRICE, "bias": PAIR},
        {},
    ]
    assert len(set(chain.parameter_names())) == len(chain.parameter_names())
    assert len(chain.parameter_names()) == len(list(Stage(chain.units).parameters()))


def test_a_shared_parameter_has_one_key_in_every_stage() -> None:
    chain = ODD["thrice"].chain()
    whole = Stage(chain.units)
    state = whole.state_dict()
    assert set(state) == set(chain.parameter_names())

    part = Stage(ODD["thrice"].chain().units[3:])  # without the first unit that has it
    own = part.state_dict()
    assert THRICE in own
    assert own.keys() < state.keys()
    changed = {name: torch.full_like(value, 0.5) for name, value in own.items()}
    part.load_state_dict(changed, strict=True)

    assert all((parameter == 0.5).all() for parameter in part.parameters())
    with pytest.raises(RuntimeError, match=r"Missing key\(s\) in state_dict: \"u3.0.weight\""):
        part.load_state_dict({n: v for n, v in changed.items() if n != THRICE}, strict=True)


def test_each_stage_has_one_copy_of_its_own() -> None:
    chain = ODD["thrice"].chain()

    shared = shared_on(0, chain)  # of the units 0, 1, 6 and 7

    first, last = copy_of(chain, 1, "weight"), copy_of(chain, 6, "weight")
    assert first is not last
    assert torch.equal(first, last)
    assert shared.repeated == {last, copy_of(chain, 6, "bias")}
    assert shared.held_elsewhere == {PAIR}
    shared_on(1, chain := ODD["thrice"].chain())  # of the units 2 to 5
    assert copy_of(chain, 3, "0.weight") is copy_of(chain, 3, "2.weight")


def test_gradients_of_copies_on_one_rank_are_added_up() -> None:
    chain = ODD["thrice"].chain()
    shared = shared_on(0, chain)
    copies = copy_of(chain, 1, "weight"), copy_of(chain, 6, "weight")
    for number, copy in enumerate((*copies, copy_of(chain, 6, "bias"))):
        copy.grad = torch.full_like(copy, number + 1)

    shared.sum_gradients()

    for copy in copies:
        assert copy.grad is not None
        assert (copy.grad == 3).all()
    assert copies[0].grad is not copies[1].grad


@pytest.mark.parametrize("value", [1.0, float("nan")])
def test_copies_on_one_rank_are_compared_bit_by_bit(value: float) -> None:
    chain = ODD["thrice"].chain()
    shared = shared_on(0, chain)
    for unit in (1, 6):
        copy_of(chain, unit, "weight").data[0, 0] = value
    shared.require_equal()

    last = copy_of(chain, 6, "weight")
    last.data[-1, -1] = torch.nextafter(last.data[-1, -1], torch.tensor(9.0, dtype=last.dtype))

    with pytest.raises(CopiesDifferError, match=f"parameter '{THRICE}': expected its copies"):
        shared.require_equal()


def drift(folder: Path) -> None:
    """Change the last bit of the last stage's copy; note what each rank says of it."""
    plan = ParallelPlan.parse("pp=2,cuts=3")
    with join_ranks(plan) as device:
        family = ODD["tied"]
        trainer = Trainer(family.chain(), family.task(), plan, mesh_of(plan, device), SEED)
        trainer._part.shared.require_equal()
        if trainer._mesh.pp_rank == 1:
            copy = trainer._part.units[-2].module.get_parameter("weight")
            copy.data.view(torch.int64)[-1, -1] += 1
        try:
            trainer._part.shared.require_equal()
        except CopiesDifferError as error:
            (folder / f"rank_{os.environ['RANK']}").write_text(str(error))


def test_a_run_ends_where_a_copy_drifts(tmp_path: Path) -> None:
    run_ranks(2, drift, tmp_path, output=tmp_path / "printed.txt")

    (told,) = tmp_path.glob("rank_*")
    assert told.name == "rank_1"
    assert told.read_text() == (
        "parameter 'u1.weight': expected its copies on all pipeline stages to be equal, found "
        "different values; resume from an earlier checkpoint, or report a bug"
    )
