"""The rule of what follows from other values: the log says it, and it has to fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from suite.logs import keys
from suite.logs.hyperparameters import counted_in_steps
from suite.plan import ParallelPlan
from suite.refusal import Refusal
from suite.rules.rule import Deviation, rule
from suite.tasks.overrides import default_hyperparameters

if TYPE_CHECKING:
    from collections.abc import Iterator

    from suite.logs.package import SealedRun
    from suite.tasks.task import Task

_MOST: Final = 10**12  # of samples; more is no count


@rule(
    "run.derived",
    scope="run",
    source="HybridPerf rules, section 2: MLPerf's keys have MLPerf's meaning",
    remedy="run again with 'hybridperf run', which logs what follows from task and plan",
)
def derived_values_fit(run: SealedRun, task: Task) -> Iterator[Deviation]:
    """Steps of the schedule, accumulation and the span of normalisation fit task and plan."""
    logged = run.log.value(keys.HYPERPARAMETERS)
    table = default_hyperparameters() | (logged if isinstance(logged, dict) else {})
    batch = _count(table.get("training.global_batch_size"))
    plan = _plan(run.log.value(keys.PLAN))
    follows: dict[str, float] = {}
    if batch:
        follows |= counted_in_steps(table, task.data.train_samples / batch)
    if plan is not None:
        follows[keys.GRADIENT_ACCUMULATION_STEPS] = plan.microbatches
        if batch:
            follows[keys.MODEL_BN_SPAN] = plan.batch_norm_span(batch)
    for key, value in follows.items():
        entry = run.log.first(key)
        if entry is not None and (isinstance(entry.value, bool) or entry.value != value):
            yield Deviation(f"{key} = {value}", f"{entry.value!r:.40}", entry.line)


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 < value < _MOST else None


def _plan(text: object) -> ParallelPlan | None:
    try:
        return ParallelPlan.parse(text) if isinstance(text, str) else None
    except Refusal:
        return None
