"""What a rank of a test of averaged gradients does: it starts and finishes steps in turns."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from hybridperf.plan import ParallelPlan
from hybridperf_reference.engine.gradient_reducer import GRADIENT_AVERAGES
from hybridperf_reference.engine.mesh import join_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from hybridperf_reference.engine.gradient_reducer import Pending

__all__ = ["COMPRESSED", "SCENARIOS", "SHAPES", "Scenario", "average_all", "gradients_of"]

# Two alike, one of a convolution, and three that factors of rank 4 would not make smaller.
SHAPES = ((20, 30), (16, 3, 3, 3), (20, 30), (8,), (5, 4), (8, 8))
COMPRESSED = (0, 1, 2)


@dataclass(frozen=True)
class Scenario:
    """Actions on a way of averaging, and what is special about the gradients of some steps.

    ``s0``, ``f0`` and ``d0`` start, finish and discard step 0; ``r1`` continues in a new object of
    staleness 1 that has the state of the old one.
    """

    actions: str
    kind: str = "powersgd"
    staleness: int = 0
    dtype: torch.dtype = torch.float64
    special: Mapping[int, str] = field(default_factory=dict)


_FIVE = "s0 f0 s1 f1 s2 f2 s3 f3 s4 f4"
_LATE = "s0 s1 s2 f0 f1 s3 f2 s4 f3 f4 s5 f5"
SCENARIOS = {
    "algorithm": Scenario(_FIVE),
    "algorithm in fp32": Scenario(_FIVE, dtype=torch.float32),
    "late": Scenario(_LATE, staleness=2),
    "late in fp32": Scenario(_LATE, staleness=2, dtype=torch.float32),
    "late, each finished at once": Scenario(
        "s0 f0 s1 f1 s2 f2 s3 f3 s4 f4 s5 f5", staleness=2, dtype=torch.float32
    ),
    "resumed": Scenario("s0 f0 s1 f1 r0 s2 f2 s3 f3 s4 f4", dtype=torch.float32),
    "resumed late": Scenario(
        "s0 s1 s2 f0 f1 f2 r2 s3 s4 f3 f4 s5 f5", staleness=2, dtype=torch.float32
    ),
    "resumed under more staleness": Scenario("s0 f0 s1 f1 r2 s2 s3 f2 s4 f3 f4"),
    "resumed under less staleness": Scenario("s0 s1 f0 s2 f1 f2 r0 s3 f3", staleness=2),
    "without overflow": Scenario("s0 f0 s2 f2"),
    "overflow": Scenario("s0 f0 s1 f1 s2 f2", special={1: "inf on the last rank"}),
    "overflow in a bias": Scenario("s0 f0 s1 f1 s2 f2", special={1: "bias nan on the last rank"}),
    "discarded": Scenario("s0 f0 s1 f1 d1 s2 f2"),
    "zeros first": Scenario("s0 f0 s1 f1", special={0: "zero", 1: "rank 1"}),
    "low rank": Scenario("s0 f0 s1 f1 s2 f2", special={0: "rank 1", 1: "rank 2"}),
    "fp32": Scenario("s0 s1 f0 f1", kind="fp32", dtype=torch.float32),
    "bf16": Scenario("s0 s1 f0 f1", kind="bf16", dtype=torch.float32),
}


def gradients_of(scenario: Scenario, rank: int, ranks: int, step: int) -> list[Tensor]:
    """Return the gradients of one replica in one step; those that are special, in some of them."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    drawn: list[Tensor] = [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(scenario.dtype)
        for shape in SHAPES
    ]
    special = scenario.special.get(step, "")
    if special == "zero":
        return [torch.zeros(shape, dtype=scenario.dtype) for shape in SHAPES]
    if special.startswith("rank"):
        # Columns that all replicas have in common, so that their mean has this rank, too.
        inner = int(special.split()[1])
        common = torch.Generator().manual_seed(step)
        for index in COMPRESSED:
            rows, columns = SHAPES[index][0], math.prod(SHAPES[index][1:])
            left = torch.randn(rows, inner, generator=common, dtype=torch.float64)
            right = torch.randn(inner, columns, generator=generator, dtype=torch.float64)
            drawn[index] = (left @ right).view(SHAPES[index]).to(scenario.dtype)
    for index, word, value in ((1, "inf on", math.inf), (3, "bias nan on", math.nan)):
        gradient = drawn[index]
        if special.startswith(word) and rank == ranks - 1:
            gradient.view(-1)[5] = value
    return drawn


def average_all(folder: Path, ranks: int) -> None:
    """Act out every scenario, and save averages, states and counts of bytes."""
    rank = int(os.environ["RANK"])
    with join_ranks(ParallelPlan(dp=ranks)):
        found = {name: _act(each, rank, ranks) for name, each in SCENARIOS.items()}
    torch.save(found, folder / f"rank_{rank}.pt")


def _act(scenario: Scenario, rank: int, ranks: int) -> dict[str, Any]:
    make = GRADIENT_AVERAGES[scenario.kind]
    group = dist.group.WORLD
    assert group is not None
    parameters = [torch.zeros(shape, dtype=scenario.dtype) for shape in SHAPES]
    average = make(parameters, group, 11, scenario.staleness)
    first = average.state()
    given: dict[int, list[Tensor]] = {}
    means: dict[int, list[Tensor]] = {}
    pending: dict[int, Pending] = {}
    for action, number in ((word[0], int(word[1:])) for word in scenario.actions.split()):
        if action == "s":
            given[number] = gradients_of(scenario, rank, ranks, number)
            pending[number] = average.start(given[number])
        elif action == "f":
            means[number] = average.finish(pending[number])
            for each, drawn in zip(
                given[number], gradients_of(scenario, rank, ranks, number), strict=True
            ):
                torch.testing.assert_close(each, drawn, rtol=0, atol=0, equal_nan=True)
        elif action == "d":
            average.discard(pending[number])
        else:
            state = {key: value.clone() for key, value in average.state().items()}
            average = make(parameters, group, 12, number)
            average.load_state(state)
    return {
        "first": first,
        "means": means,
        "state": average.state(),
        "bytes": (average.sent_bytes, average.uncompressed_bytes),
    }
