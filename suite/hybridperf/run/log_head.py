"""The head of a run's log: the entries that the harness writes before it launches the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridperf.log import keys
from hybridperf.log.hyperparameters import counted_in_steps, named_by_mlperf
from hybridperf.log.writer import LogWriter
from hybridperf.tasks.data import drop_from_page_cache
from hybridperf.tasks.overrides import hyperparameters

if TYPE_CHECKING:
    from hybridperf.run.spec import RunSpec
    from hybridperf.tasks.task import Task

__all__ = ["write_head"]


def write_head(spec: RunSpec) -> None:
    """Write the entries known before launch, and start the initialisation interval.

    The data is dropped from the page cache first (MLPerf Training rules 6.1); importing packages
    is part of initialisation.
    """
    task, plan = spec.task(), spec.parallel_plan()
    with LogWriter(spec.log, spec.clock) as log:
        log.point(keys.SUBMISSION_BENCHMARK, task.name)
        log.point(keys.SUBMISSION_ORG, spec.org)
        log.point(keys.SUBMISSION_DIVISION, spec.division)
        log.point(keys.SUBMISSION_STATUS, "onprem")
        log.point(keys.SUBMISSION_PLATFORM, spec.platform)
        drop_from_page_cache(task.data)
        log.point(keys.CACHE_CLEAR, value=True)
        log.start(keys.INIT_START)
        log.point(keys.TASK, {"name": task.name, "version": task.version, "sha256": task.sha256})
        log.point(keys.PLAN, str(plan))
        log.point(keys.SEED, spec.seed)
        for key, value in _mlperf_hyperparameters(task).items():
            log.point(key, value)
        log.point(keys.GRADIENT_ACCUMULATION_STEPS, plan.microbatches)
        log.point(keys.MODEL_BN_SPAN, plan.batch_norm_span(task.training.global_batch_size))
        log.point(keys.HYPERPARAMETERS, hyperparameters(task))


def _mlperf_hyperparameters(task: Task) -> dict[str, object]:
    """Return the task's hyperparameters by MLPerf's keys."""
    table = hyperparameters(task)
    return {
        keys.GLOBAL_BATCH_SIZE: task.training.global_batch_size,
        keys.TRAIN_SAMPLES: task.data.train_samples,
        keys.EVAL_SAMPLES: task.data.eval_samples,
        **named_by_mlperf(table),
        **counted_in_steps(table, task.steps_per_epoch),
    }
