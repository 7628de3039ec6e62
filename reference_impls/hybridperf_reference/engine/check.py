"""Checks of a plan against the chain itself, independent of the task's declarations."""

from __future__ import annotations

import dataclasses
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import nn

from hybridperf.errors import ExitCode, UserError
from hybridperf.plan import TrainingConfig
from hybridperf_reference.engine.batchnorm import is_batch_norm
from hybridperf_reference.engine.chain import copy_to
from hybridperf_reference.engine.tokens import token_axis

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from hybridperf.plan import ParallelPlan
    from hybridperf.tasks.task import Task
    from hybridperf_reference.engine.chain import Chain, Probe, Split, Unit

__all__ = ["check_chain"]


def check_chain(chain: Chain, probe: Probe, task: Task, plan: ParallelPlan) -> None:
    """Check that ``plan`` can train ``chain``, by its ``probe``.

    Raises:
        UserError: exit status 2, with the constraint that the plan violates.
    """
    modules = [module for unit in chain.units for module in unit.module.modules()]
    parameters = [p for unit in chain.units for p in dict.fromkeys(unit.module.parameters())]
    if not any(parameter.requires_grad for parameter in parameters):
        raise _refuse(plan, "a model with parameters to train", "none", "unfreeze some")
    config = TrainingConfig(
        units=len(chain.units),
        global_batch_size=task.training.global_batch_size,
        devices=plan.ranks,
        ranks_per_device=1,
        device_kind="",  # the harness checks the devices
        tensor_sizes=_split_features(chain.units),
        batch_norm=any(map(is_batch_norm, modules)),
        tied=any(unit.shared for unit in chain.units),
        filled=task.data.filled,
    )
    shared: set[int | None] = {
        len(sample)
        for unit, sample in zip(chain.units, probe.boundaries, strict=False)
        if unit.shares_tokens
    }
    for tokens in shared or {None}:  # under sequence parallelism
        for finding in plan.check(dataclasses.replace(config, tokens=tokens)):
            raise UserError(finding, ExitCode.USAGE)
    _check_shared(chain.units, plan)
    _check_attention(chain.units, plan)
    if plan.tp > 1:
        uses: Counter[Tensor | None] = Counter(
            parameter
            for module in modules
            for parameter in module._parameters.values()  # noqa: SLF001 - repeats shared parameters
        )
        device = probe.inputs.device
        for unit, (sample, after) in zip(chain.units, pairwise(probe.boundaries), strict=True):
            if plan.tensor == "1d" or unit.shares_tokens:
                _check_split(unit, torch.zeros_like(sample, device=device), after, uses, plan)
            if plan.tensor != "1d" and unit.shares_tokens:
                _check_arranged(unit, sample, uses, plan)


def _check_shared(units: Sequence[Unit], plan: ParallelPlan) -> None:
    """Check that stages can have copies of the parameters that ``units`` share.

    Raises:
        UserError: if two units have a module in common, or only one of them has its tokens split.
    """
    owner: dict[nn.Module, str] = {}
    whole_gradient: dict[str, tuple[bool, str]] = {}  # and the unit, by name of the parameter
    for unit in units:
        for name in unit.shared if plan.pp > 1 or plan.tp > 1 or plan.zero else ():
            module = unit.module.get_submodule(name.rpartition(".")[0])
            if owner.setdefault(module, unit.name) != unit.name:
                expected = "units that share parameters to have modules of their own"
                found = f"one {type(module).__name__} in {owner[module]!r} and {unit.name!r}"
                remedy = "make two modules, and assign one's parameters to the other"
                raise _refuse(plan, expected, found, remedy)
        for known_as in unit.shared.values() if (axis := token_axis(plan)) else ():
            whole, first = whole_gradient.setdefault(known_as, (not unit.shares_tokens, unit.name))
            if whole == unit.shares_tokens:
                expected = f"all units that share {known_as!r} to split tokens, or none"
                found = f"{first!r} and {unit.name!r}"
                field = "cp" if axis == "cp" else "sp"
                raise _refuse(plan, expected, found, f"drop {field}, or untie the units")


def _check_attention(units: Sequence[Unit], plan: ParallelPlan) -> None:
    """Check that units whose tokens ``cp`` splits have attention that a ring can replace.

    Raises:
        UserError: if a unit has none.
    """
    for unit in units if plan.cp > 1 else ():
        if unit.shares_tokens and not any(hasattr(m, "attend") for m in unit.module.modules()):
            expected = f"unit {unit.name!r} to mix tokens by a module's function `attend` only"
            raise _refuse(plan, expected, "none", "drop cp, or have attention call `attend`")


def _split_features(units: Sequence[Unit]) -> tuple[int, ...]:
    """Return the feature counts that the tensor-parallel degree has to divide."""
    sizes = set()
    for unit in units:
        for name, kind in unit.split.items():
            linear = unit.module.get_submodule(name)
            assert isinstance(linear, nn.Linear)
            sizes.add(linear.out_features if kind == "column" else linear.in_features)
    return tuple(sorted(sizes))


def _check_split(
    unit: Unit,
    sample: Tensor,
    after: Tensor,
    uses: Mapping[Tensor | None, int],
    plan: ParallelPlan,
) -> None:
    """Run ``unit`` with its linear layers split as on the first tensor-parallel rank.

    This finds further numbers that tp must divide, such as the number of attention heads. Above
    ``tensor=1d``, heads are split over one axis of the arrangement of ranks only.
    ``sample`` and ``after`` have the shapes [...] of one sample's activations before and after the
    unit. ``uses`` counts the modules of the chain that hold each parameter.

    Raises:
        UserError: if a split weight is shared, the pass fails, or its output shape changes.
    """
    if not unit.split:
        return
    part = copy_to(unit.module, sample.device).eval()
    for name, kind in unit.split.items():
        linear = unit.module.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        for own, parameter in linear.named_parameters():
            if uses[parameter] > 1:
                expected = f"split linear layers of unit {unit.name!r} to share no weights"
                raise _refuse(plan, expected, f"{name}.{own} is shared", "untie it, or drop tp")
        ranks = plan.tensor_axes.get("j", plan.tp)
        part.set_submodule(name, _first_part(linear, kind, ranks).to(sample.device))
    if "column" not in unit.split.values():  # row-parallel alone slices replicated inputs
        return
    try:
        with torch.no_grad():
            outputs = part(sample.unsqueeze(0))
    except (RuntimeError, ValueError) as error:
        found = str(error).partition("\n")[0]
        raise _refuse(
            plan, f"unit {unit.name!r} to run with a part of its features", found, "lower tp"
        ) from error
    if outputs.shape[1:] != after.shape:
        expected = f"unit {unit.name!r} to return the shape {tuple(after.shape)} when split"
        raise _refuse(
            plan,
            expected,
            f"{tuple(outputs.shape[1:])}",
            "declare different linear layers to split",
        )


def _check_arranged(
    unit: Unit, sample: Tensor, uses: Mapping[Tensor | None, int], plan: ParallelPlan
) -> None:
    """Check that ``tensor`` can split all parameters of ``unit``, whose inputs are as ``sample``.

    Raises:
        UserError: if one is of another layer than split linear layers and LayerNorm, is shared, or
            has features that are not divisible.
    """
    given, side = f"under tensor={plan.tensor}", plan.tensor_axes["j"]
    parts = side**2 if plan.tensor == "3d" else side
    for name, module in unit.module.named_modules():
        own = dict(module.named_parameters(recurse=False))
        if not own:
            continue
        is_norm = isinstance(module, nn.LayerNorm) and module.normalized_shape == sample.shape[-1:]
        if name not in unit.split and not (is_norm and len(own) == 2):
            expected = f"only linear layers to split and LayerNorm over all features {given}"
            raise _refuse(plan, expected, f"{unit.name}.{name}", "use tensor=1d")
        if any(uses[parameter] > 1 for parameter in own.values()):
            expected = f"no shared parameters in unit {unit.name!r} {given}"
            raise _refuse(plan, expected, f"those of {name}", "untie them, or use tensor=1d")
        for parameter in own.values():
            if any(size % parts for size in parameter.shape):
                expected = f"{parts} to divide the features of {unit.name}.{name} {given}"
                raise _refuse(plan, expected, f"{tuple(parameter.shape)}", "use tensor=1d")


def _first_part(linear: nn.Linear, kind: Split, ranks: int) -> nn.Linear:
    """Return the first of ``ranks`` shards of ``linear``."""
    outputs = linear.out_features // (ranks if kind == "column" else 1)
    inputs = linear.in_features // (ranks if kind == "row" else 1)
    part = nn.Linear(inputs, outputs, bias=linear.bias is not None, device="meta")
    part.weight = nn.Parameter(linear.weight.detach()[:outputs, :inputs])
    if linear.bias is not None:
        part.bias = nn.Parameter(linear.bias.detach()[:outputs])
    return part


def _refuse(plan: ParallelPlan, expected: str, found: str, remedy: str) -> UserError:
    return UserError(
        f"plan {str(plan)!r}: expected {expected}, found {found}; {remedy}.", ExitCode.USAGE
    )
