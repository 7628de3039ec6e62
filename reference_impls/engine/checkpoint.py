"""Checkpoints that do not know the plan: saved under one, resumed under any other."""

from __future__ import annotations

import contextlib
import json
import warnings
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from reference_impls.engine.mesh import own_rank
from reference_impls.engine.random_numbers import (
    begin_random_numbers,
    random_state,
    restore_random_state,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from torch import nn

__all__ = ["Progress", "load_checkpoint", "save_checkpoint"]

_PROGRESS = "progress.json"


@dataclass(frozen=True, slots=True)
class Progress:
    """Where training stands, alike on every rank."""

    plan: str
    seed: int
    step: int  #: optimiser steps taken or, for want of finite gradients, left out
    samples: int  #: trained on
    loss_scale: float
    good_steps: int  #: since the loss scale last changed


def save_checkpoint(
    folder: Path, module: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress
) -> None:
    """Write this rank's parameters, buffers and optimiser state into ``folder``, all ranks at once.

    Everything is named as in the whole model, and DTensors are written as shards of one tensor, by
    torch.distributed.checkpoint. Each rank's random numbers are saved beside ``progress``;
    hyperparameters are not. Replicas must agree, running statistics included.
    """
    from torch.distributed.checkpoint.state_dict_saver import save  # costs a second

    state = _model_state(module) | random_state()
    for name, parameter in _named(module, optimizer):
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                state[f"optimizer.{name}.{key}"] = value
    if own_rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _PROGRESS).write_text(json.dumps(asdict(progress)), encoding="utf-8")
    with _alone_or_together() as no_dist:
        save(state, checkpoint_id=folder, no_dist=no_dist)


def load_checkpoint(
    folder: Path, module: nn.Module, optimizer: torch.optim.Optimizer, *, plan: str, replica: int
) -> Progress:
    """Set ``module`` and ``optimizer`` as they were saved, and return where training stood.

    Each rank reads what it holds under ``plan``. Random numbers go on where they were if that is
    the plan of the checkpoint; otherwise each ``replica`` begins a new sequence at this step.

    Raises:
        RuntimeError: where the checkpoint is of another model.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemReader  # costs a second
    from torch.distributed.checkpoint.state_dict_loader import load

    progress = Progress(**json.loads((folder / _PROGRESS).read_text(encoding="utf-8")))
    saved = FileSystemReader(folder).read_metadata().state_dict_metadata
    model, parameters = _model_state(module), _named(module, optimizer)
    if missing := model.keys() - saved.keys():
        raise RuntimeError(f"the checkpoint {folder} has no {min(missing)}: it is of another model")
    moments = _room_for_moments(parameters, saved)
    random = random_state() if progress.plan == plan else {}
    state = model | random
    for number, moment in moments.items():
        state |= {f"optimizer.{parameters[number][0]}.{key}": v for key, v in moment.items()}
    with _alone_or_together() as no_dist:
        load(state, checkpoint_id=folder, no_dist=no_dist)
    module.load_state_dict({name.removeprefix("model."): state[name] for name in model})
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": moments, "param_groups": groups})
    restore_random_state({name: state[name] for name in random})
    if not random:
        begin_random_numbers(progress.seed, progress.step, replica)
    return progress


@contextlib.contextmanager
def _alone_or_together() -> Iterator[bool]:
    """Yield whether this process is the only one, of which torch would warn."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*in a single process")
        yield not dist.is_initialized()


def _model_state(module: nn.Module) -> dict[str, Any]:
    return {f"model.{name}": value for name, value in module.state_dict().items()}


def _named(module: nn.Module, optimizer: torch.optim.Optimizer) -> list[tuple[str, nn.Parameter]]:
    """Return the optimiser's parameters in its own order, with their global names."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    return [(names[id(p)], p) for group in optimizer.param_groups for p in group["params"]]


def _room_for_moments(
    parameters: list[tuple[str, nn.Parameter]], saved: Mapping[str, Any]
) -> dict[int, dict[str, Tensor]]:
    """Return room for the optimiser state of each parameter, spread over ranks as that is."""
    numbers = {name: number for number, (name, _) in enumerate(parameters)}
    room: dict[int, dict[str, Tensor]] = {}
    for path, facts in saved.items():
        kind, _, rest = path.partition(".")
        name, _, key = rest.rpartition(".")
        if kind == "optimizer" and name in numbers:
            parameter = parameters[numbers[name]][1].detach()
            alike = facts.size == parameter.shape and key != "step"
            tensor = torch.zeros_like(parameter) if alike else torch.zeros(facts.size)
            room.setdefault(numbers[name], {})[key] = tensor
    return room
