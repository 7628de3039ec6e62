"""Simulate the programs of a pipeline's ranks: when each action starts and ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridperf.plan.program import Action
    from hybridperf.projection.link import Link

__all__ = ["Bucket", "Costs", "Timeline", "simulate"]


class Bucket(NamedTuple):
    """Gradients that replicas average in one collective."""

    ready_s: float  #: before the end of the step's last backward pass of the stage; 0: at its end
    seconds: float  #: of the collective
    wait_s: float = 0.0  #: work of the rank itself when it waits for the averages, such as copying


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of actions by stage, of the update by rank, and the links between stages."""

    forward_s: tuple[float, ...]  #: by stage
    backward_s: tuple[float, ...]  #: by stage: the whole backward pass
    input_s: tuple[float, ...]  #: by stage: its half that computes gradients of inputs
    weight_s: tuple[float, ...]  #: by stage: its half that computes gradients of weights
    activation_bytes: tuple[float, ...]  #: by stage: sent to the next one for a micro-batch
    gradient_bytes: tuple[float, ...]  #: by stage: sent to the one before for a micro-batch
    links: dict[tuple[int, int], Link]  #: by (sending rank, receiving rank) of the pipeline
    wires: dict[tuple[int, int], str]
    #: by (sending rank, receiving rank): messages on wires of one name queue; others do not
    buckets: tuple[tuple[Bucket, ...], ...]  #: by stage
    update_s: tuple[float, ...]  #: by rank


@dataclass(frozen=True, slots=True)
class Timeline:
    """When each action of each rank starts and ends, in seconds from the first one."""

    programs: tuple[tuple[Action, ...], ...]  #: by rank
    start_s: tuple[tuple[float, ...], ...]  #: by rank and action
    end_s: tuple[tuple[float, ...], ...]
    busy_s: tuple[float, ...]  #: by rank: passes and updates
    exposed_s: tuple[float, ...]  #: by rank: waits for messages and averages under way
    idle_s: tuple[float, ...]  #: by rank: waits for work of other ranks, the end included
    makespan_s: float


def simulate(programs: Sequence[Sequence[Action]], costs: Costs) -> Timeline:
    """Return when each action of ``programs``, one for each rank of a pipeline, takes place.

    Raises:
        ValueError: if the programs deadlock.
    """
    raise NotImplementedError
