"""``pytest --benchmark my_model`` trains the model, and tests how long that takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hybridperf.time_to_train import TimeToTrain


def test_mixer(time_to_train: TimeToTrain) -> None:
    """The target is reached within a minute, as the mean of the runs."""
    score = time_to_train(Path(__file__).with_name("task.toml"), plan="dp=2")
    assert score.mean_s < 60
