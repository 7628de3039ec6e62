"""The orders of passes that we generate are those of torch's schedules."""

from __future__ import annotations

from typing import Any

import pytest
from torch.distributed.pipelining import ScheduleInterleaved1F1B, ScheduleZBVZeroBubble

from hybridperf.plan.schedules import ActionKind, interleaved, zero_bubble_v

KINDS = {
    "FORWARD": ActionKind.FORWARD,
    "FULL_BACKWARD": ActionKind.BACKWARD,
    "BACKWARD_INPUT": ActionKind.BACKWARD_INPUT,
    "BACKWARD_WEIGHT": ActionKind.BACKWARD_WEIGHT,
}


def torch_order(
    schedule: type[Any], rank: int, ranks: int, stages: int, microbatches: int
) -> list[tuple[ActionKind, int, int]]:
    """Return the passes of ``rank`` in torch's order table, without its pauses."""
    built: Any = object.__new__(schedule)
    rounds = max(1, microbatches // ranks)
    built.__dict__.update(
        rank=rank,
        pp_group_size=ranks,
        n_local_stages=stages,
        num_stages=ranks * stages,
        _n_microbatches=microbatches,
        number_of_rounds=rounds,
        microbatches_per_round=microbatches // rounds,
    )
    return [
        (KINDS[action.computation_type.name], action.stage_index, action.microbatch_index)
        for action in built._calculate_single_rank_operations(rank)
        if action is not None
    ]


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 2), (2, 6), (3, 2), (4, 8), (4, 10)])
def test_interleaved_is_torchs(ranks: int, stages: int, microbatches: int) -> None:
    for rank in range(ranks):
        assert [*interleaved(rank, ranks, stages, microbatches)] == torch_order(
            ScheduleInterleaved1F1B, rank, ranks, stages, microbatches
        )


@pytest.mark.parametrize("microbatches", [1, 2, 5, 8, 16])
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_zbv_is_torchs(ranks: int, microbatches: int) -> None:
    for rank in range(ranks):
        assert [*zero_bubble_v(rank, ranks, 2, microbatches)] == torch_order(
            ScheduleZBVZeroBubble, rank, ranks, 2, microbatches
        )
