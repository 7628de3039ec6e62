"""Elastic runs: a run that loses a rank goes on from its last checkpoint, under another plan.

The harness does what a user would: it ends all ranks, takes the next of the plans that were given
with the command, and starts the ranks again in the same log, on a clock that was not stopped. No
rank outlives a loss, so that nothing of the state of the lost segment gets into the next. Samples
follow from the step: every step that the final weights contain is trained once, whichever plan
trains it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from hybridperf.findings import Finding
from hybridperf.plan import ParallelPlan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridperf.plan import TrainingConfig

__all__ = ["judge_elastic", "plans_after_losses"]


def plans_after_losses(
    elastic: str | None, plan: ParallelPlan, config: TrainingConfig
) -> tuple[ParallelPlan, ...] | None:
    """Return the plans under which a run goes on, each after another loss; None if it does not.

    ``elastic`` lists them, separated by ";". Where it is empty, they are ``plan`` with fewer and
    fewer replicas, as far as they fit ``config`` and compute the same.

    Raises:
        UserError: exit status 2 if a listed plan cannot be parsed.
    """
    if elastic is None:
        return None
    if elastic:
        return tuple(ParallelPlan.parse(text) for text in elastic.split(";"))
    return tuple(each for each in _lower(plan) if not any(_problems(plan, each, config)))


def _lower(plan: ParallelPlan) -> Iterator[ParallelPlan]:
    """Yield ``plan`` with fewer replicas, from the most to one."""
    for replicas in range(plan.dp - 1, 0, -1):
        shard = None if plan.shard == replicas else plan.shard
        bn = "micro" if plan.bn == "sync" and replicas == 1 else plan.bn  # of one they are the same
        yield dataclasses.replace(plan, dp=replicas, shard=shard, bn=bn)


def judge_elastic(
    elastic: str | None, plan: ParallelPlan, config: TrainingConfig, nodes: int
) -> list[Finding]:
    """Return a finding for each reason why a run under ``plan`` cannot go on after a loss.

    Raises:
        UserError: as `plans_after_losses`.
    """
    if elastic is None:
        return []
    if nodes > 1:
        remedy = "drop --elastic: the same command on every node resumes"
        found = f"{nodes} nodes"
        return [Finding("request.elastic", "one node with --elastic", found, remedy)]
    plans = plans_after_losses(elastic, plan, config)
    if not plans:
        lower = next(_lower(plan), None)
        expected = f"a plan of fewer replicas than {plan} that computes the same"
        if lower is None:
            found, remedy = "one replica", "name the plans that go on, as in --elastic dp=1"
            return [Finding("request.elastic", expected, found, remedy)]
        return list(_problems(plan, lower, config))[:1]
    return [problem for each in plans for problem in _problems(plan, each, config)]


def _problems(first: ParallelPlan, plan: ParallelPlan, config: TrainingConfig) -> Iterator[Finding]:
    """Yield why a run that began under ``first`` cannot go on under ``plan``."""
    yield from plan.check(config)
    if difference := plan.difference_from(first, batch_norm=config.batch_norm):
        yield Finding(
            "request.elastic",
            f"plans that compute what {first} does, up to the order of sums",
            f"{plan}: {difference}",
            "add bn=sync to plans of several replicas"
            if "replicas" in difference
            else "choose another plan",
        )
