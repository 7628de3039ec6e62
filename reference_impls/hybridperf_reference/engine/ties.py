"""Parameters that units share: a copy for each stage, one gradient, and the check of the copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hybridperf.plan import ParallelPlan
    from hybridperf_reference.engine.chain import Unit
    from hybridperf_reference.engine.mesh import Mesh

__all__ = ["CopiesDifferError", "SharedParameters", "copy_shared_parameters"]


class CopiesDifferError(RuntimeError):
    """The copies of a shared parameter are no longer equal, so the model is none of one process."""


class _Copies(NamedTuple):
    """The copies of a parameter, of which each stage with a unit that uses it has one."""

    name: str  #: global name
    own: list[nn.Parameter]  #: copies [...] of this rank's stages, in their order
    is_first_here: bool  #: whether the first of all copies is among them
    group: dist.ProcessGroup | None  #: the ranks of this pipeline with copies; None for one rank


def copy_shared_parameters(stages: Iterable[Sequence[Unit]]) -> None:
    """Let no two of ``stages``, the stages of one rank, hold the same parameter; units change.

    DistributedDataParallel and FSDP2 wrap stages one by one, and each reduces what its stage holds.
    """
    taken = set[nn.Parameter]()
    for units in stages:
        copies: dict[nn.Parameter, nn.Parameter] = {}
        for unit in units:
            for name in unit.shared:
                parameter = unit.module.get_parameter(name)
                if parameter in taken and parameter not in copies:
                    copies[parameter] = nn.Parameter(
                        parameter.detach().clone(), requires_grad=parameter.requires_grad
                    )
                owner, _, leaf = name.rpartition(".")
                own = copies.setdefault(parameter, parameter)
                unit.module.get_submodule(owner).register_parameter(leaf, own)
        taken.update(copies.values())


class SharedParameters:
    """The parameters that units of several stages share, as one rank holds them.

    Each stage has a copy, which its passes use. An update begins with the sum of the gradients of
    all copies, so that all of them change alike. Copies are never sharded: a norm that is added up
    over other ranks in another order would differ in its last bit, and the copies after it.

    A collective over all ranks.
    """

    def __init__(
        self, units: Sequence[Unit], cuts: Sequence[slice], *, plan: ParallelPlan, mesh: Mesh
    ) -> None:
        places: dict[str, dict[int, tuple[Unit, str]]] = {}  # by global name and stage
        for stage, cut in enumerate(cuts):
            for unit in units[cut]:
                for name, known_as in unit.shared.items():
                    places.setdefault(known_as, {}).setdefault(stage, (unit, name))
        rank_of = {stage: rank for rank in range(plan.pp) for stage in plan.stages_of(rank)}
        self._copies: list[_Copies] = []
        for known_as, by_stage in places.items():
            if len(by_stage) == 1:
                continue
            ranks = sorted({rank_of[stage] for stage in by_stage})
            group = mesh.stages_group(ranks) if len(ranks) > 1 else None
            own = [
                unit.module.get_parameter(name)
                for stage, (unit, name) in by_stage.items()
                if rank_of[stage] == mesh.pp_rank
            ]
            if own:
                first = rank_of[min(by_stage)] == mesh.pp_rank
                self._copies.append(_Copies(known_as, own, first, group))

    @property
    def repeated(self) -> set[nn.Parameter]:
        """Return this rank's copies except the first of all: norms count a parameter once."""
        return {
            copy for each in self._copies for copy in each.own[1 if each.is_first_here else 0 :]
        }

    @property
    def held_elsewhere(self) -> set[str]:
        """Return the global names of the parameters whose first copy is on another rank."""
        return {each.name for each in self._copies if not each.is_first_here}

    def sum_gradients(self) -> None:
        """Give each copy the sum of the gradients of all copies, which must be averages already."""
        for _, own, _, group in self._copies:
            if not own[0].requires_grad:
                continue
            total = torch.zeros_like(own[0])
            for copy in own:
                assert copy.grad is not None, "all parameters have gradients"
                total += copy.grad
            if group is not None:
                dist.all_reduce(total, group=group)
            for copy in own:
                copy.grad = total if copy is own[0] else total.clone()

    def require_equal(self) -> None:
        """Compare the copies with the first one, bit by bit.

        Raises:
            CopiesDifferError: on the rank of a copy that differs.
        """
        for name, own, _, group in self._copies:
            first = own[0].detach().clone()
            if group is not None:
                dist.broadcast(first, group=group, group_src=0)
            if not all(torch.equal(_bits(copy), _bits(first)) for copy in own):
                raise CopiesDifferError(
                    f"parameter {name!r}: expected its copies on all pipeline stages to be equal, "
                    "found different values; resume from an earlier checkpoint, or report a bug"
                )


def _bits(tensor: Tensor) -> Tensor:
    """Return the bytes [byte] of ``tensor`` [...], which are equal where NaN is, too."""
    return tensor.detach().flatten().view(torch.uint8)
