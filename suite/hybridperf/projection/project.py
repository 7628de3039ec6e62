"""Project what a plan does on a system: seconds of a step, where they go, memory and bytes sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridperf.plan import ParallelPlan
    from hybridperf.projection.link import Network
    from hybridperf.projection.memory import Memory
    from hybridperf.projection.simulate import Timeline
    from hybridperf.projection.units import UnitTable, UnitTiming

__all__ = ["Projection", "lower_bound_s", "project"]


@dataclass(frozen=True, slots=True)
class Projection:
    """What a plan is projected to do; nothing in it is measured."""

    plan: ParallelPlan
    cuts: tuple[int, ...]  #: first unit of each stage but the first
    step_s: float  #: in the steady state: the mean of the last of several steps
    samples_per_s: float
    busy_s: tuple[float, ...]  #: by pipeline rank, in a step
    idle_share: float  #: of all ranks' time: waiting for other stages' work ("bubble")
    exposed_communication_s: float  #: in a step: waiting for data under way, mean of the ranks
    memory: tuple[Memory, ...]  #: by pipeline rank
    sent_bytes: dict[str, float]
    #: in a step, by all ranks, as handed to sends and collectives; by kind: ``activations`` and
    #: ``activation_gradients`` between stages, ``gradients`` averaged over replicas, ``parameters``
    #: gathered by sharding, ``tensor_parallel``
    timeline: Timeline | None  #: of all steps simulated, if asked for

    @property
    def memory_bytes(self) -> tuple[int, ...]:
        """Return the bytes that each pipeline rank needs."""
        return tuple(memory.total_bytes for memory in self.memory)


def project(
    plan: ParallelPlan,
    units: UnitTable,
    timing: UnitTiming,
    network: Network,
    *,
    global_batch_size: int,
    optimizer: str,
    cuts: Sequence[int] | None = None,
    with_timeline: bool = False,
) -> Projection:
    """Return what ``plan`` is projected to do for micro-batches whose units take ``timing``.

    ``cuts`` are the first units of each stage but the first; those of the exact partition if None.
    """
    raise NotImplementedError


def lower_bound_s(
    plan: ParallelPlan,
    units: UnitTable,
    timing: UnitTiming,
    network: Network,
    *,
    global_batch_size: int,
    cuts: Sequence[int] | None = None,
) -> float:
    """Return seconds that a step takes at least, in closed form: for pruning a search."""
    raise NotImplementedError
