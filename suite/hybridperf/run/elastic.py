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
from hybridperf.run.ending import published_reason
from hybridperf.run.resume import reopen, resumable_step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridperf.plan import TrainingConfig
    from hybridperf.run.ending import Ending
    from hybridperf.run.request import RunRequest
    from hybridperf.run.spec import RunSpec

__all__ = ["judge_elastic", "next_segment", "plans_after_losses"]


def plans_after_losses(
    request: RunRequest, config: TrainingConfig
) -> tuple[ParallelPlan, ...] | None:
    """Return the plans under which a run goes on, each after another loss; None if it does not.

    Where the request lists none, they are its plan with fewer and fewer replicas, as far as they
    fit ``config`` and compute the same.

    Raises:
        UserError: exit status 2 if a listed plan cannot be parsed.
    """
    if request.elastic is None:
        return None
    if request.elastic:
        return tuple(ParallelPlan.parse(text) for text in request.elastic.split(";"))
    return tuple(each for each in _lower(request.plan) if not any(_problems(request, each, config)))


def _lower(plan: ParallelPlan) -> Iterator[ParallelPlan]:
    """Yield ``plan`` with fewer replicas, from the most to one."""
    for replicas in range(plan.dp - 1, 0, -1):
        shard = None if plan.shard == replicas else plan.shard
        bn = "micro" if plan.bn == "sync" and replicas == 1 else plan.bn  # of one they are the same
        yield dataclasses.replace(plan, dp=replicas, shard=shard, bn=bn)


def judge_elastic(request: RunRequest, config: TrainingConfig) -> list[Finding]:
    """Return a finding for each reason why the run of ``request`` cannot go on after a loss.

    Raises:
        UserError: as `plans_after_losses`.
    """
    if request.elastic is None:
        return []
    if request.nodes.count > 1:
        remedy = "drop --elastic: the same command on every node resumes"
        found = f"{request.nodes.count} nodes"
        return [Finding("request.elastic", "one node with --elastic", found, remedy)]
    plans = plans_after_losses(request, config)
    if not plans:
        lower = next(_lower(request.plan), None)
        expected = f"a plan of fewer replicas than {request.plan} that computes the same"
        if lower is None:
            found, remedy = "one replica", "name the plans that go on, as in --elastic dp=1"
            return [Finding("request.elastic", expected, found, remedy)]
        return list(_problems(request, lower, config))[:1]
    return [problem for plan in plans for problem in _problems(request, plan, config)]


def _problems(request: RunRequest, plan: ParallelPlan, config: TrainingConfig) -> Iterator[Finding]:
    """Yield why the run of ``request`` cannot go on under ``plan``."""
    yield from plan.check(config)
    if difference := plan.difference_from(request.plan, batch_norm=config.batch_norm):
        yield Finding(
            "request.elastic",
            f"plans that compute what {request.plan} does, up to the order of sums",
            f"{plan}: {difference}",
            "add bn=sync to plans of several replicas"
            if "replicas" in difference
            else "choose another plan",
        )


def next_segment(spec: RunSpec, ending: Ending) -> RunSpec | None:
    """Prepare the run, which has lost a rank, to go on under its next plan.

    Return its new specification; None if it has stopped, or cannot go on. Without a checkpoint it
    begins anew, on the same clock.
    """
    assert spec.elastic, "there is a plan that goes on"
    plan, *left = spec.elastic
    step = resumable_step(spec, from_start=True)
    if step is None:
        return None
    under = dataclasses.replace(spec, segment_plan=plan, elastic=tuple(left))
    why = published_reason(ending.reason, exceptions=spec.publish_errors)
    return reopen(under, step, ending.lost, why)
