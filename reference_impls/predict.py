"""Predict the class of every evaluation image from saved weights, in a process of its own."""

from __future__ import annotations

import torch

from reference_impls.engine.mesh import local_device
from reference_impls.engine.stage import Stage
from reference_impls.models import chain_of
from suite.runs.prediction import Prediction

__all__ = ["main"]

_CHUNK = 64  # samples: activations of more no longer fit the processor's cache


def main() -> None:
    """Answer the harness's question with the model that the weights make."""
    prediction = Prediction.join()
    chain = chain_of(prediction.task, seed=0)
    device = local_device()
    stage = Stage(chain.units).to(device).eval()
    stage.load_state_dict(prediction.weights(), strict=True)
    images = torch.from_numpy(prediction.images())
    with torch.inference_mode():
        logits = [stage(chain.prepare(chunk.to(device))) for chunk in images.split(_CHUNK)]
    prediction.answer(torch.cat(logits).argmax(dim=1).cpu().numpy())


if __name__ == "__main__":
    main()
