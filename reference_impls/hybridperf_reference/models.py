"""Model families, selected by the first part of a task's name."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from hybridperf.tasks.task import Task
    from hybridperf_reference.engine.chain import Chain

__all__ = ["Build", "chain_of", "family_of"]

Build: TypeAlias = "Callable[[Task], Chain]"


def chain_of(task: Task, seed: int, build: Build | None = None) -> Chain:
    """Build the model of ``task`` with weights initialized from ``seed``, identical on every rank.

    ``build`` overrides the task's family.

    Raises:
        ValueError: if the family is unknown, or the chain's units differ from the task's.
        UserError: exit status 2 if the task's ``[model]`` table is invalid.
    """
    torch.manual_seed(seed)
    chain = (build or _builder(task))(task)
    names = tuple(unit.name for unit in chain.units)
    if names != task.units:
        raise ValueError(f"{task.name} declares the units {task.units}, its chain has {names}")
    return chain


def family_of(task: Task) -> str:
    """Return the model family of ``task``; ``resnet50`` and ``bert_large`` name sizes of one."""
    return task.family.partition("_")[0].rstrip("0123456789")


def _builder(task: Task) -> Build:
    """Return the function that builds models of the task's family."""
    # Imported lazily: a family's data may need further packages.
    match family_of(task):
        case "resnet":
            from hybridperf_reference.resnet.chain import resnet_chain as build
        case "vgg":
            from hybridperf_reference.vgg.chain import vgg_chain as build
        case "vit":
            from hybridperf_reference.vit.chain import vit_chain as build
        case "bert":
            from hybridperf_reference.bert.chain import bert_chain as build
        case family:
            raise ValueError(f"no model family {family!r}")
    return build
