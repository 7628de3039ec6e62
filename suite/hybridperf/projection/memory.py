"""How many bytes of memory each rank of a pipeline needs, by what they hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridperf.plan import ParallelPlan
    from hybridperf.projection.units import UnitTable

__all__ = ["Memory", "memory_bytes"]


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that one rank's device holds at its fullest, by what they are."""

    weights_bytes: int  #: newest version
    versions_bytes: int  #: older versions that later passes compute with
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int  #: kept between forward and backward passes

    @property
    def total_bytes(self) -> int:
        """Return the sum of all of them."""
        return (
            self.weights_bytes
            + self.versions_bytes
            + self.gradients_bytes
            + self.optimizer_bytes
            + self.activations_bytes
        )


def memory_bytes(
    plan: ParallelPlan, units: UnitTable, cuts: Sequence[int], microbatch: int, optimizer: str
) -> tuple[Memory, ...]:
    """Return what each rank of a pipeline holds, for micro-batches of ``microbatch`` samples.

    ``cuts`` are the first units of each stage but the first, ``optimizer`` the name of one that
    tasks may state: ``sgd``, ``adamw``, ``lars`` or ``lamb``.
    """
    raise NotImplementedError
