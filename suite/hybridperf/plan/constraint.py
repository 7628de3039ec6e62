"""What a plan must fit, and the registry of constraints on a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from hybridperf.plan.fields import PlanFields

__all__ = ["CONSTRAINTS", "Constraint", "Reason", "TrainingConfig", "constraint"]


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """The model, the batch and the devices that a plan must fit."""

    units: int
    global_batch_size: int
    devices: int  #: number of accelerators, or of processor cores if there are none
    ranks_per_device: int  #: largest number of ranks that share a device
    device_kind: str = "cpu"
    tensor_sizes: tuple[int, ...] = ()
    #: numbers that tensor parallelism must divide, such as of attention heads; empty: no tp
    tokens: int | None = None  #: per sample, if units can work on parts of the tokens
    batch_norm: bool = True  #: whether any unit normalizes over the batch
    tied: bool = False  #: whether two units share a parameter
    compiler: bool = True  #: whether a compiler for torch.compile is available


Reason = tuple[str, str, str]  #: expected, found, remedy
Reasons = Callable[[PlanFields, TrainingConfig], Iterator[Reason]]


@dataclass(frozen=True, slots=True)
class Constraint:
    """A combination that is refused, why, and the function that detects it."""

    rule: str  #: rule of its findings, without the prefix ``plan.``
    refused: str  #: as docs/plans.md lists it
    why: str
    reasons: Reasons


CONSTRAINTS: Final[list[Constraint]] = []  #: in the order in which docs list them


def constraint(rule: str, refused: str, why: str) -> Callable[[Reasons], Reasons]:
    """Register a function that yields a `Reason` for each way in which a plan violates it."""

    def register(reasons: Reasons) -> Reasons:
        CONSTRAINTS.append(Constraint(rule, refused, why, reasons))
        return reasons

    return register
