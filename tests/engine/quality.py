"""The quality that all ranks reach together, counted where labels are, as the harness does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hybridperf.run.access import EvaluationData

if TYPE_CHECKING:
    from hybridperf.tasks.data import Samples
    from hybridperf_reference.engine.trainer import Trainer

__all__ = ["quality_of"]


def quality_of(trainer: Trainer, samples: Samples) -> float:
    """Evaluate ``samples`` on all ranks; each sample is predicted once."""
    data = EvaluationData(samples.inputs, on_batch=lambda: None)
    trainer.evaluate(data)
    counts = torch.zeros(2, dtype=torch.int64)  # right, predicted
    for chunk, classes in data.predicted:
        counts[0] += int((classes == samples.labels[chunk]).sum())
        counts[1] += classes.size
    mesh = trainer._mesh
    right, predicted = mesh.sum(counts.to(mesh.device)).tolist()
    assert predicted == samples.labels.size
    return float(right / predicted)
