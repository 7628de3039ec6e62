"""Predict the classes of all evaluation samples from saved weights, in a separate process."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch

from hybridperf.run.prediction import Prediction
from hybridperf_reference.engine.chain import Stage
from hybridperf_reference.engine.input import Input, ReadingRole
from hybridperf_reference.engine.mesh import local_device
from hybridperf_reference.engine.precision import DTYPES, apply_precision, set_float32_math
from hybridperf_reference.models import chain_of

if TYPE_CHECKING:
    from hybridperf_reference.models import Build

__all__ = ["main"]

_CHUNK = 64  # samples: activations of more exceed the CPU's cache


def main(build: Build | None = None) -> None:
    """Load the weights that the harness names and return predictions for its evaluation inputs.

    ``build`` overrides the task's model family, as in `train.main`.
    """
    prediction = Prediction.join()
    chain = chain_of(prediction.task, 0, build)
    device = local_device()
    set_float32_math(tf32=prediction.plan.precision == "tf32")
    apply_precision(chain.units, dtype=DTYPES[prediction.plan.precision], device=device)
    stage = Stage(chain.units).to(device).eval()
    stage.load_state_dict(prediction.weights(), strict=True)
    stored, answers = prediction.inputs(), []
    samples = len(stored)
    chunks = (slice(at, min(at + _CHUNK, samples)) for at in range(0, samples, _CHUNK))
    with (
        contextlib.closing(Input(chain.objective, device, ReadingRole())) as read,
        torch.inference_mode(),
    ):
        for _, inputs in read.evaluate(stored, chunks):
            answers.append(chain.objective.predictions(stage(inputs)).cpu())
    prediction.answer(torch.cat(answers).numpy())


if __name__ == "__main__":
    main()
