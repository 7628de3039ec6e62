"""What a plan must fit."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ChainFacts"]


@dataclass(frozen=True, slots=True)
class ChainFacts:
    """What a plan must fit: the model's units, the batch and the devices."""

    units: int
    global_batch_size: int
    devices: int  #: accelerators, or processor cores where there are none
    ranks_per_device: int  #: 1 on accelerators; cores may be shared, which is then declared
    device_kind: str = "cpu"
    tensor_sizes: tuple[int, ...] = ()
    #: what tensor parallelism divides, such as attention heads; empty where nothing may be split
    tokens: int | None = None  #: of a sample, where units work token by token; None elsewhere
    batch_norm: bool = True  #: whether any unit normalises over the batch
    tied: bool = False  #: whether two units share a parameter
    compiler: bool = True  #: whether there is one to compile units with
