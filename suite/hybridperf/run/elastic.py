"""Elastic runs: a run that loses a rank or node goes on from its last checkpoint.

The harness does what a user would: it ends all ranks, takes the next of the plans that were given
with the command, and starts the ranks again in the same log, on a clock that was not stopped. No
rank outlives a loss, so that nothing of the state of the lost segment gets into the next. Samples
follow from the step: every step that the final weights contain is trained once, whichever plan
trains it. The ranks of a plan are on as many of the nodes that are left as can share them equally;
a node without ranks waits. When a lost node is back, the run goes on at its next checkpoint with
the first plan that fits.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from hybridperf.findings import Finding
from hybridperf.plan import ParallelPlan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hybridperf.plan import TrainingConfig
    from hybridperf.run.spec import RunSpec

__all__ = ["judge_elastic", "plans_after_losses", "ranks_per_node", "segment_on"]


def ranks_per_node(config: TrainingConfig, nodes: int) -> int:
    """Return the largest number of ranks for which each of the ``nodes`` has devices."""
    return config.devices // nodes * config.ranks_per_device


def segment_on(nodes: Sequence[int], spec: RunSpec, first: int) -> RunSpec | None:
    """Return the run ``spec`` under the first of its plans that fits ``nodes``; None without any.

    Its plans are the plan that it began under and those of ``elastic``, from number ``first`` on.
    """
    for number in range(first, 1 + len(spec.elastic or ())):
        under = dataclasses.replace(spec, plan_number=number)
        if share := _sharing_nodes(under.parallel_plan().ranks, nodes, spec.ranks_per_node):
            return dataclasses.replace(under, segment_nodes=share)
    return None


def _sharing_nodes(ranks: int, nodes: Sequence[int], most: int) -> tuple[int, ...]:
    """Return as many of ``nodes`` as share ``ranks`` equally, at most ``most`` on each, if any."""
    for count in range(len(nodes), 0, -1):
        if ranks % count == 0 and ranks // count <= most:
            return tuple(nodes[:count])
    return ()


def plans_after_losses(
    elastic: str | None, plan: ParallelPlan, config: TrainingConfig, nodes: int
) -> tuple[ParallelPlan, ...] | None:
    """Return the plans under which a run goes on, each after another loss; None if it does not.

    ``elastic`` lists them, separated by ";". Where it is empty, they are ``plan`` with fewer and
    fewer replicas, as far as they fit ``config`` on ``nodes`` and compute the same.

    Raises:
        UserError: exit status 2 if a listed plan cannot be parsed.
    """
    if elastic is None:
        return None
    if elastic:
        return tuple(ParallelPlan.parse(text) for text in elastic.split(";"))
    return tuple(each for each in _lower(plan) if not any(_problems(plan, each, config, nodes)))


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
    plans = plans_after_losses(elastic, plan, config, nodes)
    if not plans:
        lower = next(_lower(plan), None)
        expected = f"a plan of fewer replicas than {plan} that computes the same"
        if lower is None:
            found, remedy = "one replica", "name the plans that go on, as in --elastic dp=1"
            return [Finding("request.elastic", expected, found, remedy)]
        return list(_problems(plan, lower, config, nodes))[:1]
    return [problem for each in plans for problem in _problems(plan, each, config, nodes)]


def _problems(
    first: ParallelPlan, plan: ParallelPlan, config: TrainingConfig, nodes: int
) -> Iterator[Finding]:
    """Yield why a run that began under ``first`` cannot go on under ``plan`` on ``nodes``."""
    findings = plan.check(config)
    yield from findings
    most = ranks_per_node(config, nodes)
    if not findings and not _sharing_nodes(plan.ranks, range(nodes), most):
        expected = f"plans whose ranks {nodes} nodes or fewer share equally, at most {most} on each"
        found, remedy = f"{plan} of {plan.ranks}", "choose another plan"
        yield Finding("request.elastic", expected, found, remedy)
    if difference := plan.difference_from(first, batch_norm=config.batch_norm):
        yield Finding(
            "request.elastic",
            f"plans that compute what {first} does, up to the order of sums",
            f"{plan}: {difference}",
            "add bn=sync to plans of several replicas"
            if "replicas" in difference
            else "choose another plan",
        )
