"""What a plan must fit: the model, the batch and the devices."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TrainingConfig"]


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
