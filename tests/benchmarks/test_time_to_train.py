"""What ``pytest --benchmark`` measures: whether a hybrid plan is faster than one process here.

Five runs give a result its place. Of the families, VGG and the vision transformer train fastest by
``reports/leaderboard.csv``, so that one process and the fastest hybrid plan of each fit into about
five minutes of two cores. The others run once, under their fastest hybrid plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from hybridperf.time_to_train import TimeToTrain

RESULTS = (
    ("vgg/laptop", "dp=1", 5),
    ("vgg/laptop", "pp=2", 5),
    ("vit/laptop", "dp=1", 5),
    ("vit/laptop", "dp=2", 5),
    ("resnet/laptop", "dp=2", 1),
    ("bert/laptop", "dp=2", 1),
)


@pytest.mark.parametrize(("task", "plan", "runs"), RESULTS)
def test_time_to_train(time_to_train: TimeToTrain, task: str, plan: str, runs: int) -> None:
    score = time_to_train(task, plan=plan, runs=runs)

    assert all(run.completion == "reached" for run in score.completed)
