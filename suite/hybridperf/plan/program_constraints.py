"""The constraints on plans that delay updates or compress what ranks send."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridperf.plan.constraint import constraint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridperf.plan.constraint import Reason, TrainingConfig
    from hybridperf.plan.fields import PlanFields


@constraint("links", "`links` with `pp=1`", "the same plan under another name")
def _links(plan: PlanFields, config: TrainingConfig) -> Iterator[Reason]:
    if plan.links != "none" and plan.pp == 1:
        yield f"a pipeline (pp > 1) for links={plan.links}", "pp=1", "drop links"


@constraint(
    "program",
    "`staleness`, `links` or `gradients=powersgd` with `zero`, `tp`, `compile`, `sync=blocking`, "
    "`interleaved` or `zbv`",
    "a program executes them, which says what a rank does and with which version of the weights: "
    "of stages in `1f1b` or `gpipe` whose weights are whole",
)
def _programmed(plan: PlanFields, config: TrainingConfig) -> Iterator[Reason]:
    if not plan.delays_or_compresses:
        return
    unsupported = {
        f"zero={plan.zero}": plan.zero > 0,
        f"tp={plan.tp}": plan.tp > 1,
        "compile=on": plan.compile,
        "sync=blocking": plan.sync == "blocking",
        f"schedule={plan.schedule}": plan.stages > 1,
    }
    for found, is_stated in unsupported.items():
        if is_stated:
            yield f"no {found} with {', '.join(plan.deviations)}", found, f"drop {found}"


@constraint(
    "powersgd",
    "`gradients=powersgd` with `precision=fp16`",
    "what a replica has not sent is added to gradients of another loss scale",
)
def _scaled_residues(plan: PlanFields, config: TrainingConfig) -> Iterator[Reason]:
    if plan.gradients == "powersgd" and plan.precision == "fp16":
        yield "one loss scale with gradients=powersgd", "precision=fp16", "use precision=bf16"


@constraint(
    "flush",
    "`flush=off` without `staleness` and `pp`, or with another schedule than `1f1b`",
    "without a flush a pass of the next step begins before the update of this one",
)
def _no_flush(plan: PlanFields, config: TrainingConfig) -> Iterator[Reason]:
    if plan.flush:
        return
    if plan.pp == 1 or not plan.staleness:
        yield "pp > 1 and staleness for flush=off", str(plan), "add pp=2 and staleness=1"
    elif plan.schedule != "1f1b":
        yield "schedule=1f1b for flush=off", f"schedule={plan.schedule}", "drop schedule"
    elif plan.staleness * plan.microbatches < plan.pp - 1:
        yield (
            f"staleness x microbatches of at least pp - 1 = {plan.pp - 1} with flush=off",
            f"{plan.staleness} x {plan.microbatches}",
            f"set staleness={-(-(plan.pp - 1) // plan.microbatches)} or more micro-batches",
        )
