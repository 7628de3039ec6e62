"""Train one run; torchrun starts this module on every rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reference_impls.engine.mesh import build_mesh, join_ranks
from reference_impls.engine.trainer import Trainer
from reference_impls.models import chain_of
from suite.logs import keys
from suite.runs.timed_run import TimedRun

if TYPE_CHECKING:
    from reference_impls.models import Build

__all__ = ["main"]


def main(build: Build | None = None) -> None:
    """Train until the harness says stop, then hand over the weights.

    The model is what ``build`` makes of the task, or the task's family.
    """
    with TimedRun.join() as run, join_ranks(run.plan) as device:
        mesh = build_mesh(run.plan, device)
        chain = chain_of(run.task, run.seed, build)
        for name in chain.parameter_names():
            run.describe(keys.WEIGHTS_INITIALIZATION, tensor=name)
        trainer = Trainer(chain, run.task, run.plan, mesh, run.seed)
        run.describe(*trainer.partition_entry())
        trainer.warm_up()
        if run.checkpoint is not None:
            trainer.load(run.checkpoint)
        with run.clock():
            for block in run.blocks():
                trainer.train(run.training_data(block))
                run.track(trainer.statistics())
                run.report(trainer.evaluate(run.evaluation_data()), trainer.save)
        weights = trainer.weights()  # on every rank: each may hold a part of the others' too
        if mesh.replica == 0 and mesh.part == 0:
            run.save(weights, part=mesh.stage)


if __name__ == "__main__":
    main()
