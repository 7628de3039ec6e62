"""Train one run, as the module that the harness starts on every rank."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from hybridperf.log import keys
from hybridperf.run.timed_run import TimedRun
from hybridperf_reference.engine.mesh import build_mesh, join_ranks
from hybridperf_reference.engine.precision import set_float32_math
from hybridperf_reference.engine.trainer import Trainer
from hybridperf_reference.interchange import load_weights
from hybridperf_reference.models import chain_of

if TYPE_CHECKING:
    from torch import Tensor

    from hybridperf_reference.engine.mesh import Mesh
    from hybridperf_reference.models import Build

__all__ = ["main"]


def main(build: Build | None = None) -> None:
    """Train until the harness stops the run.

    ``build`` overrides the task's model family.
    """
    with TimedRun.join() as run, join_ranks(run.plan) as device:
        run.describe(keys.FLOAT32_MATH, set_float32_math(tf32=run.plan.precision == "tf32"))
        mesh = build_mesh(run.plan, device)
        chain = chain_of(run.task, run.seed, build)
        if run.initial is not None:
            load_weights(chain, run.task, run.initial, run.initial_format)
        for name in chain.parameter_names():
            run.describe(keys.WEIGHTS_INITIALIZATION, tensor=name)
        with contextlib.closing(Trainer(chain, run.task, run.plan, mesh, run.seed)) as trainer:
            run.describe(*trainer.partition_entry())
            trainer.warm_up()
            if run.checkpoint is not None:
                trainer.load(run.checkpoint)
            if run.initial is not None:
                with run.initial_evaluation() as samples:
                    trainer.evaluate(samples)
            with run.clock():
                for block in run.blocks():
                    for data in run.parts(block, trainer.save):
                        trainer.train(data)
                    run.track(trainer.statistics())
                    trainer.evaluate(run.evaluation_data())
                    run.report(lambda: _handover_weights(trainer, mesh), trainer.save)


def _handover_weights(trainer: Trainer, mesh: Mesh) -> dict[str, Tensor]:
    """Return the weights that this rank hands over; one rank of each stage has any."""
    weights = trainer.weights()  # on every rank, since shards are gathered
    return weights if mesh.replica == 0 and mesh.is_first_of_stage else {}


if __name__ == "__main__":
    main()
