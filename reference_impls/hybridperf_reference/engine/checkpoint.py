"""Checkpoints independent of the plan: any plan resumes from a checkpoint of any plan.

A checkpoint is a folder written by torch.distributed.checkpoint, with ``progress.json`` and
``SHA256SUMS``, in the format of ``sha256sum --check``. Every file is verified against its checksum
before any file is opened.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import warnings
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from hybridperf.log.chain import SUMS, format_sums
from hybridperf_reference.engine.mesh import own_rank
from hybridperf_reference.engine.norms import zeros_like

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from torch import nn

    from hybridperf_reference.engine.chain import Stage

__all__ = [
    "CheckpointError",
    "TrainingProgress",
    "load_checkpoint",
    "load_model",
    "save_checkpoint",
]

Item = TypeVar("Item")

_PROGRESS = "progress.json"
_SUM = re.compile(r"([0-9a-f]{64})  ([^/\0]+)")


class CheckpointError(RuntimeError):
    """A checkpoint cannot be loaded; the message names the file and a remedy."""


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """The state of training except tensors, identical on every rank."""

    plan: str
    seed: int
    step: int  #: optimizer steps, including steps skipped for non-finite gradients
    samples: int  #: number of samples trained on
    loss_scale: float
    good_steps: int  #: consecutive steps with finite gradients since the loss scale changed
    version_scales: Mapping[str, float] = field(default_factory=dict)
    #: loss scale by older version of the weights that delayed steps need


def save_checkpoint(
    folder: Path,
    module: Stage,
    optimizer: torch.optim.Optimizer,
    progress: TrainingProgress,
    extra: Mapping[str, Tensor] = MappingProxyType({}),
) -> None:
    """Write parameters, buffers and optimizer state into ``folder``; a collective over all ranks.

    Tensors have their global names, and torch.distributed.checkpoint writes the shards of a DTensor
    as one tensor. ``extra`` are further tensors [...] by global name. Random numbers follow from
    the step, hyperparameters from the task; neither is saved. Replicas must agree, running
    statistics included, and so must the copies of a shared parameter, of which one is written. When
    any rank returns, all files have been written.
    """
    from torch.distributed.checkpoint.state_dict_saver import save  # lazily: takes a second

    state = _model_state(module) | {f"extra.{name}": value for name, value in extra.items()}
    for name, parameter in _named_parameters(module, optimizer):
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                state[f"optimizer.{name}.{key}"] = value
    if own_rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _PROGRESS).write_text(json.dumps(asdict(progress)), encoding="utf-8")
    with _single_process() as no_dist:
        save(state, checkpoint_id=folder, no_dist=no_dist)
    own = [*folder.glob(f"__{own_rank()}_*")]
    own += [folder / ".metadata", folder / _PROGRESS] if own_rank() == 0 else []
    sums = [sum_ for part in _gather([(path.name, _sha256(path)) for path in own]) for sum_ in part]
    if own_rank() == 0:
        (folder / SUMS).write_text(format_sums(dict(sums)), encoding="utf-8")
    _gather(None)  # another rank that loads at once must find the sums


def load_checkpoint(
    folder: Path,
    module: Stage,
    optimizer: torch.optim.Optimizer,
    extra: Callable[[TrainingProgress], Mapping[str, Tensor]] = lambda _: {},
) -> tuple[TrainingProgress, dict[str, Tensor]]:
    """Restore ``module`` and ``optimizer`` in place and return the progress of training.

    A collective over all ranks. Each reads the shards that it holds, whichever plan saved them.
    ``extra`` returns further tensors [...] to load; the result has the subset that the checkpoint
    has in the same shape.

    Raises:
        CheckpointError: on every rank, if a file is missing or damaged, or if the checkpoint is
            of another model.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemReader  # as above
    from torch.distributed.checkpoint.state_dict_loader import load

    _raise_first(_first_damage(folder))
    progress = TrainingProgress(**json.loads((folder / _PROGRESS).read_text(encoding="utf-8")))
    saved = FileSystemReader(folder).read_metadata().state_dict_metadata
    model, parameters = _model_state(module), _named_parameters(module, optimizer)
    _raise_first(_first_difference(folder, model, saved))
    moments = _empty_optimizer_state(dict(parameters), saved)
    more = {
        f"extra.{name}": tensor
        for name, tensor in extra(progress).items()
        if getattr(saved.get(f"extra.{name}"), "size", None) == tensor.shape
    }
    state = model | more
    for name, moment in moments.items():
        state |= {f"optimizer.{name}.{key}": value for key, value in moment.items()}
    with _single_process() as no_dist:
        load(state, checkpoint_id=folder, no_dist=no_dist)
    module.load_state_dict({name.removeprefix("model."): state[name] for name in model})
    groups = optimizer.state_dict()["param_groups"]
    own, seen = dict[int, dict[str, Tensor]](), set[str]()
    for number, (name, _) in enumerate(parameters):
        moment = moments.get(name, {})
        if name in seen:  # each copy of a shared parameter has moments of its own
            moment = {key: value.clone() for key, value in moment.items()}
        seen.add(name)
        own |= {number: moment} if moment else {}
    optimizer.load_state_dict({"state": own, "param_groups": groups})
    return progress, {name.removeprefix("extra."): tensor for name, tensor in more.items()}


def load_model(folder: Path, module: nn.Module) -> None:
    """Restore ``module`` in place from a checkpoint of any plan, in one process.

    Raises:
        CheckpointError: if a file is missing or damaged, or the checkpoint is of another model.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemReader  # as above
    from torch.distributed.checkpoint.state_dict_loader import load

    _raise_first(_first_damage(folder))
    saved = FileSystemReader(folder).read_metadata().state_dict_metadata
    state = _model_state(module)
    _raise_first(_first_difference(folder, state, saved))
    with _single_process() as no_dist:
        load(state, checkpoint_id=folder, no_dist=no_dist)


@contextlib.contextmanager
def _single_process() -> Iterator[bool]:
    """Yield whether this is the only process, and silence torch's warning about it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*in a single process")
        yield not dist.is_initialized()


def _first_damage(folder: Path) -> CheckpointError | None:
    """Return an error for the first damaged file in this rank's share of the files, or None."""
    if not (folder / SUMS).is_file():
        return _error(folder / SUMS, "the SHA-256 of every file", "no such file")
    lines = (folder / SUMS).read_text(encoding="utf-8", errors="replace").splitlines()
    sums = {}
    for number, line in enumerate(lines, start=1):
        entry = _SUM.fullmatch(line)
        if entry is None:
            where = f"a SHA-256, two spaces and a file name in line {number}"
            return _error(folder / SUMS, where, "invalid text")
        sums[entry[2]] = entry[1]
    names = {path.name for path in folder.iterdir()} - {SUMS}
    for name in sorted(names | sums.keys())[own_rank() :: _ranks()]:
        path, expected = folder / name, f"SHA-256 {sums.get(name, 'none')[:12]}..."
        if name not in sums:
            return _error(folder / SUMS, f"the SHA-256 of {name}", "none")
        if not path.is_file():
            return _error(path, f"a file with {expected}", "none")
        if (found := _sha256(path)) != sums[name]:
            return _error(path, f"a file with {expected}", f"{found[:12]}...")
    return None


def _first_difference(
    folder: Path, model: Mapping[str, Any], saved: Mapping[str, Any]
) -> CheckpointError | None:
    """Return an error for the first tensor of ``model`` that ``saved`` lacks or has reshaped."""
    for name, value in sorted(model.items()):
        if name not in saved:
            return _error(folder, f"{name} of this model", "none: it is of another model")
        if (size := tuple(saved[name].size)) != tuple(value.shape):
            expected = f"{name} of shape {list(value.shape)}"
            return _error(folder, expected, f"{list(size)}: it is of another model")
    return None


def _error(path: Path, expected: str, found: str) -> CheckpointError:
    remedy = "resume from another checkpoint or train from the beginning"
    return CheckpointError(f"{path}: expected {expected}, found {found}; {remedy}")


def _raise_first(own: CheckpointError | None) -> None:
    """Raise the error of the lowest failed rank on every rank, so that no rank blocks."""
    for error in _gather(own):
        if error is not None:
            raise error


def _gather(value: Item) -> list[Item]:
    """Return the ``value`` of every rank, in rank order."""
    values: list[Any] = [value] * _ranks()
    if dist.is_initialized():
        dist.all_gather_object(values, value)
    return values


def _ranks() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _model_state(module: nn.Module) -> dict[str, Any]:
    """Return the parameters and buffers of ``module`` by their keys in a checkpoint."""
    return {f"model.{name}": value for name, value in module.state_dict().items()}


def _named_parameters(
    module: Stage, optimizer: torch.optim.Optimizer
) -> list[tuple[str, nn.Parameter]]:
    """Return the optimizer's parameters, in its own order, with their global names.

    Copies of a shared parameter have one name.
    """
    names = {id(p): module.global_name(name) for name, p in module.named_parameters()}
    return [(names[id(p)], p) for group in optimizer.param_groups for p in group["params"]]


def _empty_optimizer_state(
    parameters: Mapping[str, nn.Parameter], saved: Mapping[str, Any]
) -> dict[str, dict[str, Tensor]]:
    """Return zero tensors to load optimizer state into, by global name and state key.

    State in the shape of its parameter has the parameter's sharding.
    """
    state: dict[str, dict[str, Tensor]] = {}
    for path, entry in saved.items():
        kind, _, rest = path.partition(".")
        name, _, key = rest.rpartition(".")
        if kind == "optimizer" and name in parameters:
            parameter = parameters[name].detach()
            has_shape = entry.size == parameter.shape and key != "step"
            tensor = zeros_like(parameter) if has_shape else torch.zeros(entry.size)
            state.setdefault(name, {})[key] = tensor
    return state
