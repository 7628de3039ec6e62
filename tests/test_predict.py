from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from reference_impls import predict
from reference_impls.engine.mesh import build_mesh
from reference_impls.engine.trainer import Trainer
from reference_impls.images.classifier import ImageClassifier
from reference_impls.models import chain_of
from suite.logs.clock import LogClock
from suite.runs.spec import RUN_VARIABLE, RunSpec
from suite.runs.timed_run import TimedRun
from suite.tasks.data import load
from suite.tasks.registry import task_path

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_fresh_process_answers_what_the_trainer_did(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = RunSpec(
        folder=str(tmp_path),
        attempt=0,
        task_path=str(task_path("vit/laptop")),
        trainer="reference_impls",
        overrides={},
        plan=f"precision={precision}",
        seed=3,
        org="local",
        platform="here",
        division="closed",
        clock=LogClock(),
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
        outputs = trainer._executor.predict(chain.objective.evaluation(held_out.inputs[:64]))
    assert outputs is not None
    with TimedRun(spec, rank=1) as run:
        run.save(trainer.weights())

    predict.main()

    answers = np.load(spec.predictions)
    assert len(answers) == len(held_out)
    assert np.array_equal(answers[:64], outputs.float().numpy())
