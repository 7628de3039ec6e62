"""The model families, by the name that a task begins with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from reference_impls.resnet.chain import resnet_chain

if TYPE_CHECKING:
    from collections.abc import Callable

    from reference_impls.engine.chain import Chain
    from suite.tasks.task import Task

__all__ = ["chain_of"]

_FAMILIES: dict[str, Callable[[Task], Chain]] = {"resnet": resnet_chain}


def chain_of(task: Task, seed: int) -> Chain:
    """Build the model of ``task``, the same on every rank, with weights drawn from ``seed``.

    Raises:
        ValueError: where the chain's units are not the ones that the task declares.
    """
    torch.manual_seed(seed)
    chain = _FAMILIES[task.family](task)
    names = tuple(unit.name for unit in chain.units)
    if names != task.units:
        raise ValueError(f"{task.name} declares the units {task.units}, its chain has {names}")
    return chain
