"""The random numbers of a rank's generators, which dropout draws from."""

from __future__ import annotations

from typing import Any

import torch
from numpy.random import SeedSequence

from reference_impls.engine.mesh import own_rank

__all__ = ["begin_random_numbers", "random_state", "restore_random_state"]


def begin_random_numbers(seed: int, step: int, replica: int) -> None:
    """Begin a new sequence, alike on all ranks of a replica.

    Tensor parallelism leaves activations whole between its linears: every rank of a group must drop
    the same ones. Replicas have other samples, and drop others.
    """
    sequence = SeedSequence([seed, step, replica])
    torch.manual_seed(int(sequence.generate_state(1)[0]))


def random_state() -> dict[str, Any]:
    """Return the states of this rank's generators, by names that no other rank has."""
    kinds = ["cpu"]
    if torch.accelerator.is_available():
        accelerator = torch.accelerator.current_accelerator()
        assert accelerator is not None
        kinds.append(accelerator.type)
    names = [f"random.{own_rank()}.{kind}" for kind in kinds]
    return {name: _generator(name).get_rng_state() for name in names}


def restore_random_state(state: dict[str, Any]) -> None:
    """Set this rank's generators as `random_state` found them."""
    for name, numbers in state.items():
        _generator(name).set_rng_state(numbers)


def _generator(name: str) -> Any:
    """Return the module of torch that has the generator of a state's name."""
    kind = name.rpartition(".")[2]
    return torch if kind == "cpu" else torch.get_device_module(kind)
