"""The model families, by the name that a task begins with."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from reference_impls.engine.chain import Chain
    from suite.tasks.task import Task

__all__ = ["Build", "chain_of"]

Build: TypeAlias = "Callable[[Task], Chain]"


def chain_of(task: Task, seed: int, build: Build | None = None) -> Chain:
    """Build the model of ``task``, the same on every rank, with weights drawn from ``seed``.

    A model that is none of the families is what ``build`` makes of the task.

    Raises:
        ValueError: where there is no such family, or where the chain's units are not the ones
            that the task declares.
    """
    torch.manual_seed(seed)
    chain = (build or _family(task))(task)
    names = tuple(unit.name for unit in chain.units)
    if names != task.units:
        raise ValueError(f"{task.name} declares the units {task.units}, its chain has {names}")
    return chain


def _family(task: Task) -> Build:
    """Return what builds the chains of a family; ``resnet50`` and ``bert_large`` are sizes."""
    # Imported where it is needed: a family's data may need more than its model.
    match task.family.partition("_")[0].rstrip("0123456789"):
        case "resnet":
            from reference_impls.resnet.chain import resnet_chain as build
        case "vgg":
            from reference_impls.vgg.chain import vgg_chain as build
        case "vit":
            from reference_impls.vit.chain import vit_chain as build
        case "bert":
            from reference_impls.bert.chain import bert_chain as build
        case family:
            raise ValueError(f"no model family {family!r}")
    return build
