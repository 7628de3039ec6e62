"""What ``pytest --benchmark`` measures: every family, three runs each, in five minutes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from hybridperf.time_to_train import TimeToTrain

RESULTS = (
    ("resnet/laptop", "dp=1"),
    ("resnet/laptop", "dp=2"),
    ("vgg/laptop", "pp=2"),
    ("vit/laptop", "dp=2"),
    ("bert/laptop", "dp=2"),
)


@pytest.mark.parametrize(("task", "plan"), RESULTS)
def test_time_to_train(time_to_train: TimeToTrain, task: str, plan: str) -> None:
    score = time_to_train(task, plan=plan)

    assert all(run.completion == "reached" for run in score.completed)
