"""What ``pytest --benchmark`` measures: each laptop task under several plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from suite.pytest_plugin import TimeToTrain

PLANS = ("dp=1", "dp=2", "pp=2", "dp=2,pp=2")


@pytest.mark.parametrize("plan", PLANS)
def test_resnet_laptop(time_to_train: TimeToTrain, plan: str) -> None:
    score = time_to_train("resnet/laptop", plan=plan)

    assert all(run.completion == "reached" for run in score.completed)
