"""What keeps a plan from running, known before anything starts: each reason one finding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suite.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from suite.plan.facts import ChainFacts
    from suite.plan.plan import ParallelPlan

__all__ = ["misfits"]

_Reason = tuple[str, str, str, str]  #: rule, expected, found, remedy


def misfits(plan: ParallelPlan, facts: ChainFacts) -> Iterator[Finding]:
    """Yield a finding for each reason why ``plan`` does not fit ``facts``, or itself."""
    for part in (_ranks, _batch, _pipeline, _split_backward, _replicas, _tensor, _numbers):
        for rule, expected, found, remedy in part(plan, facts):
            yield Finding(f"plan.{rule}", expected, found, remedy, path=f"plan {str(plan)!r}")


def _ranks(plan: ParallelPlan, facts: ChainFacts) -> Iterator[_Reason]:
    axes = {"dp": plan.dp, "pp": plan.pp, "tp": plan.tp}
    names = [name for name, size in axes.items() if name != "tp" or size > 1]
    if plan.ranks > (most := facts.devices * facts.ranks_per_device):
        yield (
            "ranks",
            f"at most {most} ranks ({facts.devices} devices, {facts.ranks_per_device} on each)",
            f"{' x '.join(names)} = {plan.ranks} ranks",
            f"lower {' or '.join(names)}, or run on more devices",
        )
    if plan.pipeline_stages > facts.units:
        each = f"pp={plan.pp}" + (f" of {plan.stages} stages each" if plan.stages > 1 else "")
        yield (
            "units",
            f"at most {facts.units} stages, one for each unit of the model",
            each,
            f"lower pp to {facts.units // plan.stages} or less",
        )


def _batch(plan: ParallelPlan, facts: ChainFacts) -> Iterator[_Reason]:
    if facts.global_batch_size % (parts := plan.dp * plan.microbatches):
        yield (
            "divides",
            f"dp x microbatches to divide the batch of {facts.global_batch_size} samples",
            f"{plan.dp} x {plan.microbatches} = {parts}",
            "choose dp and microbatches from its divisors",
        )


def _pipeline(plan: ParallelPlan, facts: ChainFacts) -> Iterator[_Reason]:
    if plan.schedule == "1f1b" and plan.microbatches < plan.pp:
        yield (
            "microbatches",
            f"at least pp={plan.pp} micro-batches under schedule=1f1b",
            f"microbatches={plan.microbatches}",
            f"set microbatches={plan.pp} or more, or schedule=gpipe",
        )
    if plan.schedule == "interleaved" and plan.microbatches % plan.pp:
        yield (
            "microbatches",
            f"a multiple of pp={plan.pp} micro-batches under schedule=interleaved",
            f"microbatches={plan.microbatches}",
            f"set microbatches={-(-plan.microbatches // plan.pp) * plan.pp}",
        )
    if facts.tied and (plan.pp > 1 or plan.zero):
        yield (
            "tied",
            "neither pp nor zero where units share a parameter: each has a part of its gradient",
            f"pp={plan.pp}, zero={plan.zero}",
            "drop them, or untie the units in the model",
        )


def _split_backward(plan: ParallelPlan, facts: ChainFacts) -> Iterator[_Reason]:
    """``zbv`` computes gradients of inputs and of weights apart; some methods know only both."""
    if plan.schedule != "zbv":
        return
    if plan.dp > 1 and not plan.zero and plan.sync == "overlapped":
        yield (
            "split_backward",
            "no overlapped all-reduce under schedule=zbv, which DDP would do before all is there",
            "sync=overlapped",
            "add sync=blocking or zero=1",
        )
    if plan.zero == 3:
        yield (
            "split_backward",
            "zero=1 under schedule=zbv: zero=3 frees parameters whose gradients are still to come",
            "zero=3",
            "use zero=1, or schedule=interleaved",
        )
    if plan.compile:
        yield (
            "split_backward",
            "no compile under schedule=zbv: a compiled backward pass cannot be split",
            "compile=on",
            "drop compile, or use schedule=interleaved",
        )
    if plan.recompute:
        yield (
            "split_backward",
            "no recompute under schedule=zbv: both halves of the backward pass would recompute",
            f"recompute={'full' if plan.recompute == 1 else plan.recompute}",
            "drop recompute, or use schedule=1f1b",
        )
    if plan.bn == "sync" and facts.batch_norm:
        yield (
            "split_backward",
            "no bn=sync under schedule=zbv: its collectives cannot be split into two passes",
            "bn=sync",
            "use bn=deferred, or schedule=interleaved",
        )


def _replicas(plan: ParallelPlan, facts: ChainFacts) -> Iterator[_Reason]:
    if plan.dp == 1 and (plan.zero or plan.sync == "blocking"):
        found = f"zero={plan.zero}" if plan.zero else "sync=blocking"
        yield "replicas", f"replicas (dp > 1) for {found} to work on", "dp=1", f"drop {found}"
    if plan.zero and plan.sync == "blocking":
        yield (
            "sync",
            "sync=overlapped with zero, which reduces gradients itself",
            "sync=blocking",
            "drop sync or zero",
        )
    if plan.zero == 2 and plan.pp > 1:
        yield (
            "zero",
            "zero=1 or zero=3 in a pipeline: it reduces gradients once a step, as zero=1 does",
            "zero=2",
            "use zero=1",
        )
    if plan.shard is not None and not plan.zero:
        yield "shard", "zero where shard is given", f"shard={plan.shard}", "add zero=3"
    elif plan.shard is not None and (plan.shard == 1 or plan.dp % plan.shard):
        yield (
            "shard",
            f"shard to divide dp={plan.dp}, and to be more than 1",
            f"shard={plan.shard}",
            "choose a divisor of dp",
        )
    if plan.offload == "cpu" and not plan.zero:
        yield "offload", "zero where offload is given", "offload=cpu", "add zero=3"
    elif plan.offload == "cpu" and facts.device_kind == "cpu":
        yield "offload", "an accelerator to offload from", "the processor", "drop offload"


def _tensor(plan: ParallelPlan, facts: ChainFacts) -> Iterator[_Reason]:
    if plan.sp and plan.tp == 1:
        yield "sp", "tp > 1 for sp: it shares out what tp leaves whole", "tp=1", "add tp=2"
    if plan.sp and facts.tokens is None:
        yield "sp", "units that work token by token for sp", "a model of images", "drop sp"
    elif plan.sp and facts.tokens is not None:
        first_part = -(-facts.tokens // plan.tp)
        if first_part * (plan.tp - 1) >= facts.tokens:
            yield (
                "sp",
                f"a part of the {facts.tokens} tokens of a sample for each rank under sp",
                f"tp={plan.tp}, which leaves some with none",
                "lower tp, or drop sp",
            )
    if plan.tp > 1 and not facts.tensor_sizes:
        yield "tp", "a model that declares linears to split for tp", "none", "drop tp"
    for size in facts.tensor_sizes:
        if size % plan.tp:
            yield (
                "tp",
                f"tp to divide the {size} heads or features that the model splits",
                f"tp={plan.tp}",
                "choose a divisor",
            )


def _numbers(plan: ParallelPlan, facts: ChainFacts) -> Iterator[_Reason]:
    if plan.compile and not facts.compiler:
        yield (
            "compile",
            "a C++ compiler for compile=on to run on the processor",
            "none",
            "install g++, name another in the variable CXX, or drop compile",
        )
    if plan.recompute > facts.units:
        yield (
            "recompute",
            f"at most every {facts.units}th unit to be recomputed, as there are no more",
            f"recompute={plan.recompute}",
            "lower recompute",
        )
    if plan.bn != "micro" and not facts.batch_norm:
        yield "bn", "BatchNorm in the model where bn is given", "none", "drop bn"
    if plan.bn == "sync" and plan.dp == 1:
        yield "bn", "replicas (dp > 1) for bn=sync to work on", "dp=1", "drop bn"
    if plan.bn == "deferred" and plan.microbatches == 1:
        yield (
            "bn",
            "more than one micro-batch for bn=deferred to put together",
            "microbatches=1",
            "drop bn",
        )
