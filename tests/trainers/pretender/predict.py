"""Answer from the memory that was handed over."""

from __future__ import annotations

from hybridperf.run.prediction import Prediction
from hybridperf.run.spec import RunSpec
from tests.trainers.nearest.memory import Memory

if __name__ == "__main__":
    prediction = Prediction.join()
    memory = Memory()
    memory.load(RunSpec.from_environment())
    prediction.answer(memory.answer(prediction.inputs()))
