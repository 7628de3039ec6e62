"""A model as a chain of units, with its training objective; independent of any parallelism."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor, nn

from hybridperf.errors import ExitCode, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from hybridperf.tasks.data import Samples

__all__ = [
    "MOST_CPU_PARAMETERS",
    "Chain",
    "Objective",
    "Probe",
    "Split",
    "Stage",
    "Unit",
    "copy_to",
    "trial_pass",
]

MOST_CPU_PARAMETERS = 2**24  #: largest model that `Chain.probe` runs on the CPU

Split = Literal["column", "row"]  #: split of a linear layer, by output or by input features


@dataclass(frozen=True, slots=True)
class Unit:
    """The smallest part of a model that is assigned to a pipeline stage as a whole."""

    name: str  #: prefix of the parameters' global names
    module: nn.Module  #: maps a tensor [batch, ...] to a tensor; not in place
    split: Mapping[str, Split] = field(default_factory=dict)
    #: split of each linear layer under tensor parallelism, by name inside ``module``
    shared: Mapping[str, str] = field(default_factory=dict)
    #: global name of each parameter that other units have too, by name inside ``module``: its name
    #: in the first of them. `Chain` finds them, by identity

    @property
    def shares_tokens(self) -> bool:
        """Return whether the unit supports sequence and context parallelism.

        It needs column- and row-parallel layers, and works token by token. Between column- and
        row-parallel layers it may mix tokens; for context parallelism by calling the attribute
        ``attend`` of a module, as `hybridperf_reference.transformer.Attention` does.
        """
        return set(self.split.values()) == {"column", "row"}

    @property
    def columns(self) -> set[str]:
        """Return the names of the column-parallel layers."""
        return {name for name, kind in self.split.items() if kind == "column"}

    @property
    def gather_points(self) -> set[str]:
        """Return the modules that share their input with all column-parallel layers inside."""
        return {name.rpartition(".")[0] or name for name in self.columns}


class Objective(Protocol):
    """Inputs and targets of samples, loss, and predictions.

    Random augmentation and masking depend only on the seed, the epoch and the sample index, so
    every plan trains on identical data.
    """

    @property
    def reads_ahead(self) -> bool:
        """Return whether reading is slow enough to run in data-loader worker processes.

        One rank of each tp group then reads for all of them, so with tp all samples must have one
        shape.
        """

    def read(
        self, samples: Samples, indices: NDArray[Any], seed: int, epoch: int
    ) -> tuple[Tensor, ...]:
        """Return the raw inputs of samples ``indices`` [batch], as host tensors [batch, ...].

        Only ranks of the first stage call this.
        """

    def prepare(self, *stored: Tensor) -> Tensor:
        """Return the first unit's inputs [batch, ...] from the tensors of `read`, on the device."""

    def targets(self, samples: Samples, indices: NDArray[Any], seed: int, epoch: int) -> Tensor:
        """Return the targets of samples ``indices`` [batch] as a host tensor [batch, ...].

        Only ranks of the last stage need them, so this should decode no inputs.
        """

    def evaluation(self, stored: Any) -> Tensor:
        """Return the first unit's inputs [batch, ...] on the host from stored evaluation inputs.

        Called by the processes that call `read`.
        """

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of the loss of ``outputs`` for ``targets``, both [batch, ...].

        [], or [term] for a loss of several means. The loss of the global batch is the sum over
        terms of this sum over the global batch, over the sum of `count`.
        """

    def count(self, targets: Tensor) -> Tensor | int | tuple[int, ...]:
        """Return the number of ``targets`` [batch, ...] that `loss` sums over, in each term.

        The number may vary between samples.
        """

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return the classes that ``outputs`` [batch, ...] predict, in the shape of the labels.

        [batch], or [batch, label]. Each element counts as one prediction in the task's
        accuracy.
        """


@dataclass(frozen=True, slots=True)
class Chain:
    """A model as an ordered sequence of units; several units may have the same parameter."""

    units: tuple[Unit, ...]
    objective: Objective
    example: Callable[[int], tuple[Tensor, Tensor]]
    #: batch size -> synthetic inputs and targets, both [batch, ...]

    def __post_init__(self) -> None:
        # Now, since a unit that a rank does not train is moved to another device, with other
        # parameters.
        object.__setattr__(self, "units", tuple(_with_shared_names(self.units)))

    def parameter_names(self) -> list[str]:
        """Return the global name of each parameter, in the order of the units."""
        names = (
            unit.shared.get(name, f"{unit.name}.{name}")
            for unit in self.units
            for name, _ in unit.module.named_parameters()
        )
        return list(dict.fromkeys(names))

    def probe(self) -> Probe:
        """Return copies of the units to examine.

        Models with more than `MOST_CPU_PARAMETERS`, such as cluster tasks, are copied to the meta
        device, which needs no memory and no computation. Smaller models are copied to the CPU,
        where a pass takes milliseconds: meta tensors import parts of torch's compiler, which takes
        seconds. So are larger models that read values of activations, which meta tensors lack.

        Raises:
            UserError: from `Probe.boundaries`.
        """
        parameters = [p for unit in self.units for p in unit.module.parameters()]
        built = not any(parameter.is_meta for parameter in parameters)
        small = sum(parameter.numel() for parameter in parameters) <= MOST_CPU_PARAMETERS
        if built and small:
            return self._copies("cpu")
        probe = self._copies("meta")
        if not built:
            return probe
        try:
            _ = probe.boundaries
        except RuntimeError:
            return self._copies("cpu")
        return probe

    def _copies(self, device_type: str) -> Probe:
        device = torch.device(device_type)
        copies = [copy_to(unit.module, device) for unit in self.units]
        names = [unit.name for unit in self.units]
        return Probe(names, copies, self.example(1)[0].to(device))


def _with_shared_names(units: Sequence[Unit]) -> Iterable[Unit]:
    """Return ``units`` with the names of the parameters that several of them have."""
    places: dict[nn.Parameter, dict[int, list[str]]] = {}  # names by number of the unit
    for number, unit in enumerate(units):
        for name, parameter in unit.module.named_parameters(remove_duplicate=False):
            places.setdefault(parameter, {}).setdefault(number, []).append(name)
    shared: list[dict[str, str]] = [{} for _ in units]
    for by_unit in places.values():
        if len(by_unit) == 1:
            continue
        first = min(by_unit)
        known_as = f"{units[first].name}.{by_unit[first][0]}"
        for number, names in by_unit.items():
            shared[number] |= dict.fromkeys(names, known_as)
    return (replace(unit, shared=names) for unit, names in zip(units, shared, strict=True))


@dataclass(frozen=True)
class Probe:
    """Copies of a chain's units for trial passes.

    A trial may change mode and buffers, so each trial sets its mode and relies on no values of
    buffers. Copies are made once, since copying takes longer than most trials.
    """

    names: list[str]  #: names of the units
    modules: list[nn.Module]
    inputs: Tensor  #: synthetic inputs [1, ...] of the first unit

    @functools.cached_property
    def boundaries(self) -> list[Tensor]:
        """One sample's activations [...] before each unit and after the last.

        Meta tensors, without a batch dimension.

        Raises:
            UserError: from `trial_pass`.
        """
        outputs = self.inputs
        samples = [outputs[0].to("meta")]
        with torch.no_grad():
            for name, module in zip(self.names, self.modules, strict=True):
                outputs = trial_pass(name, module.eval(), outputs)
                samples.append(outputs[0].to("meta"))
        return samples


def trial_pass(name: str, module: nn.Module, inputs: Tensor) -> Tensor:
    """Return the outputs [batch, ...] of unit ``name``, copied as ``module``, for ``inputs`` [...].

    Raises:
        UserError: exit status 2 if the outputs are not one tensor, or ``inputs`` have changed.
    """
    before = inputs._version  # noqa: SLF001 - counts changes in place, also without values
    outputs: object = module(inputs)
    if not isinstance(outputs, Tensor):
        expected, found = "to return one tensor", f"{type(outputs).__name__}"
        remedy = "let it return the input of the next unit"
    elif inputs._version != before:  # noqa: SLF001
        expected, found = "to leave its input unchanged", "an in-place operation on it"
        remedy = "let its first operation return a new tensor, as with inplace=False"
    else:
        return outputs
    raise UserError(
        f"unit {name!r}: expected its forward {expected}, found {found}; {remedy}.", ExitCode.USAGE
    )


def copy_to(module: nn.Module, device: torch.device) -> nn.Module:
    """Return a copy of ``module`` on ``device``; on the meta device without values."""
    memo: dict[int, Any] = {
        id(parameter): nn.Parameter(
            parameter.detach().to(device, copy=True), requires_grad=parameter.requires_grad
        )
        for parameter in module.parameters()
    }
    memo |= {id(buffer): buffer.detach().to(device, copy=True) for buffer in module.buffers()}
    return copy.deepcopy(module, memo).to(device)


_NARROW = {torch.bfloat16, torch.float16}


class Stage(nn.Module):
    """Apply ``units`` in order.

    State-dict keys are the chain's global parameter names, whichever units the stage holds, so a
    checkpoint does not depend on the plan. A parameter that units share has one key.
    """

    def __init__(self, units: Sequence[Unit]) -> None:
        super().__init__()
        self._in_order = tuple(unit.module for unit in units)
        self._shared = {
            f"{unit.name}.{name}": known_as
            for unit in units
            for name, known_as in unit.shared.items()
        }
        self.register_state_dict_post_hook(Stage._name_once)  # type: ignore[no-untyped-call]  # torch has no types for it
        self.register_load_state_dict_pre_hook(Stage._name_everywhere)  # type: ignore[no-untyped-call]  # as above
        for unit in units:
            parent: nn.Module = self
            *folders, leaf = unit.name.split(".")
            for folder in folders:
                if not hasattr(parent, folder):
                    parent.add_module(folder, nn.Module())
                parent = parent.get_submodule(folder)
            parent.add_module(leaf, unit.module)

    def global_name(self, name: str) -> str:
        """Return the state-dict key of the parameter ``name``, as `named_parameters` calls it."""
        return self._shared.get(name, name)

    def _name_once(self, state: dict[str, Tensor], prefix: str, _: object) -> None:
        """Let ``state`` have each shared parameter under its global name only."""
        for name, known_as in self._shared.items():
            if name != known_as:
                state.setdefault(prefix + known_as, state.pop(prefix + name))

    def _name_everywhere(self, state: dict[str, Tensor], prefix: str, *_: object) -> None:
        """Let ``state`` have each shared parameter under all of its names in this stage."""
        values = {
            known_as: state.pop(prefix + known_as)
            for known_as in set(self._shared.values())
            if prefix + known_as in state
        }
        for name, known_as in self._shared.items():
            if known_as in values:
                state[prefix + name] = values[known_as]

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the last unit's outputs [batch, ...] for ``inputs`` [batch, ...].

        Outputs are contiguous; fp16 and bf16 are converted to fp32.
        """
        if inputs.dim() == 4:  # images: convolutions are 1.3 times as fast channels-last
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        if inputs.requires_grad:  # gradients are sent between stages too
            inputs.register_hook(Tensor.contiguous)
        outputs = inputs
        for module in self._in_order:
            outputs = module(outputs)
        if outputs.dtype in _NARROW:  # stage boundaries and losses are fp32
            outputs = outputs.float()
        return outputs.contiguous()
