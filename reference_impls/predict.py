"""Predict the classes of every evaluation sample from saved weights, in a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from reference_impls.engine.mesh import local_device
from reference_impls.engine.precision import DTYPES, apply_precision
from reference_impls.engine.stage import Stage
from reference_impls.models import chain_of
from suite.runs.prediction import Prediction

if TYPE_CHECKING:
    from reference_impls.models import Build

__all__ = ["main"]

_CHUNK = 64  # samples: activations of more no longer fit the processor's cache


def main(build: Build | None = None) -> None:
    """Answer the harness's question with the model that the weights make: that of `train.main`."""
    prediction = Prediction.join()
    chain = chain_of(prediction.task, 0, build)
    device = local_device()
    apply_precision(chain.units, dtype=DTYPES[prediction.plan.precision], device=device)
    stage = Stage(chain.units).to(device).eval()
    stage.load_state_dict(prediction.weights(), strict=True)
    stored, objective, answers = prediction.inputs(), chain.objective, []
    with torch.inference_mode():
        for first in range(0, len(stored), _CHUNK):
            inputs = objective.evaluation(stored[first : first + _CHUNK]).to(device)
            answers.append(objective.predictions(stage(inputs)).cpu())
    prediction.answer(torch.cat(answers).numpy())


if __name__ == "__main__":
    main()
