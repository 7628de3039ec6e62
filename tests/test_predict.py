from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from hybridperf.run.prediction import PREDICTIONS
from hybridperf.run.spec import RUN_VARIABLE, weights_part
from hybridperf.tasks.data import load
from hybridperf.tasks.registry import task_path
from hybridperf_reference import predict
from hybridperf_reference.engine.mesh import build_mesh
from hybridperf_reference.engine.trainer import Trainer
from hybridperf_reference.images.objective import ImageClassifier
from hybridperf_reference.models import chain_of
from tests.run_spec import run_spec

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_new_process_predicts_what_the_trainer_did(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = run_spec(
        tmp_path, task_path=str(task_path("vit/laptop")), plan=f"precision={precision}", seed=3
    )
    spec.write()
    monkeypatch.setenv(RUN_VARIABLE, str(spec.path))
    # Scores say more than the classes that they lead to.
    monkeypatch.setattr(ImageClassifier, "predictions", lambda _, outputs: outputs.float())
    task, plan = spec.task(), spec.parallel_plan()
    chain, held_out = chain_of(task, spec.seed), load(task.data).evaluation
    trainer = Trainer(chain, task, plan, build_mesh(plan, torch.device("cpu")), spec.seed)
    trainer._stage.eval()
    with torch.no_grad():
        for parameter in trainer._stage.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)  # a new model scores zero
        outputs = trainer._executor.predict(chain.objective.evaluation(held_out.inputs[:64]), 64)
    assert outputs is not None
    spec.weights.mkdir(parents=True)
    weights = {name: value.contiguous() for name, value in trainer.weights().items()}
    save_file(weights, weights_part(spec.weights, 0))
    spec.scoring.mkdir()

    predict.main()

    answers = np.load(spec.scoring / PREDICTIONS)
    assert len(answers) == len(held_out)
    assert np.array_equal(answers[:64], outputs.float().numpy())
