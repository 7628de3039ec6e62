"""The constraints on a plan: one entry for each combination that fails or computes wrongly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from hybridperf.plan.fields import FIELDS, PlanFields

__all__ = ["CONSTRAINTS", "Constraint", "Reason", "TrainingConfig", "constraint"]


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """The model, the batch and the devices that a plan must fit."""

    units: int
    global_batch_size: int
    devices: int  #: number of accelerators, or of processor cores on a machine without any
    ranks_per_device: int  #: largest number of ranks on one device
    device_kind: str = "cpu"
    tensor_sizes: tuple[int, ...] = ()
    #: numbers that tp must divide, such as the number of attention heads; empty: no tp
    tokens: int | None = None  #: tokens per sample; None if units cannot work token by token
    batch_norm: bool = True  #: whether any unit normalizes over the batch
    tied: bool = False  #: whether two units share a parameter
    compiler: bool = True  #: whether a compiler for torch.compile is available
    filled: bool = True  #: whether all samples have equal numbers of tokens


Reason = tuple[str, str, str]  #: expected, found, remedy
Reasons = Callable[[PlanFields, TrainingConfig], Iterator[Reason]]


@dataclass(frozen=True, slots=True)
class Constraint:
    """A refused combination of fields, the reason, and the function that detects it."""

    rule: str  #: rule id of the findings, without the prefix ``plan.``
    refused: str  #: combination of fields, for docs/plans.md
    why: str
    reasons: Reasons


CONSTRAINTS: Final[list[Constraint]] = []  #: constraints in the order of docs/plans.md


def constraint(rule: str, refused: str, why: str) -> Callable[[Reasons], Reasons]:
    """Register a function that yields a `Reason` for each violation of the constraint."""

    def register(reasons: Reasons) -> Reasons:
        CONSTRAINTS.append(Constraint(rule, refused, why, reasons))
        return reasons

    return register


@constraint(
    "ranks",
    "more ranks than the devices allow",
    "one rank on an accelerator, at most four on a processor core",
)
def _devices(plan: PlanFields, config: TrainingConfig) -> Iterator[Reason]:
    axes = {"dp": plan.dp, "pp": plan.pp, "cp": plan.cp, "tp": plan.tp}
    names = [name for name, size in axes.items() if name in {"dp", "pp"} or size > 1]
    if plan.ranks > (most := config.devices * config.ranks_per_device):
        yield (
            f"at most {most} ranks ({config.devices} devices, {config.ranks_per_device} on each)",
            f"{' x '.join(names)} = {plan.ranks} ranks",
            f"lower {' or '.join(names)}, or run on more devices",
        )


@constraint("units", "more stages than the model has units", "a stage has at least one unit")
def _units(plan: PlanFields, config: TrainingConfig) -> Iterator[Reason]:
    if plan.pipeline_stages > config.units:
        yield (
            f"at most {config.units} stages, one for each unit of the model",
            f"pp={plan.pp}" + (f" of {plan.stages} stages each" if plan.stages > 1 else ""),
            f"lower pp to {config.units // plan.stages} or less",
        )


@constraint("cut", "`cut` or `cuts` with `pp=1`", "one stage has all units")
def _cut_one_stage(plan: PlanFields, config: TrainingConfig) -> Iterator[Reason]:
    for name in ("cut", "cuts"):
        field, value = FIELDS[name], getattr(plan, name)
        if plan.pp == 1 and value != field.default:
            found = f"{name}={field.word(value)}"
            yield f"a pipeline (pp > 1) for {found}", "pp=1", f"drop {name}, or add pp=2"


@constraint(
    "cut",
    "`cuts` that are not one for each stage after the first, or exceed the number of units",
    "each stage has at least one unit",
)
def _cuts(plan: PlanFields, config: TrainingConfig) -> Iterator[Reason]:
    if plan.pp == 1 or not plan.cuts:
        return
    found, needed = f"cuts={FIELDS['cuts'].word(plan.cuts)}", plan.pipeline_stages - 1
    if len(plan.cuts) != needed:
        numbers = f"{needed} {'number' if needed == 1 else 'numbers'}"
        yield (
            f"{numbers} in cuts, one for each stage after the first",
            f"{len(plan.cuts)} in {found}",
            f"give {numbers}, or drop cuts",
        )
    if plan.cuts[-1] >= config.units:
        yield (
            f"cuts below {config.units}, the number of units of the model",
            found,
            "lower them, or drop cuts",
        )


@constraint(
    "divides",
    "`dp` x `microbatches` that does not divide the global batch",
    "all micro-batches have the same size",
)
def _batch(plan: PlanFields, config: TrainingConfig) -> Iterator[Reason]:
    if config.global_batch_size % (parts := plan.dp * plan.microbatches):
        yield (
            f"dp x microbatches to divide the batch of {config.global_batch_size} samples",
            f"{plan.dp} x {plan.microbatches} = {parts}",
            "choose dp and microbatches from its divisors",
        )


@constraint(
    "microbatches",
    "a number of micro-batches that the schedule cannot run",
    "see the table of schedules",
)
def _microbatches(plan: PlanFields, config: TrainingConfig) -> Iterator[Reason]:
    if plan.pipeline is None or plan.delays_or_compresses:  # programs run any number
        return
    runs = plan.pipeline.next_microbatches(plan.pp, plan.microbatches)
    if runs != plan.microbatches:
        numbers = plan.pipeline.microbatches
        yield (
            f"m to be {numbers} under schedule={plan.schedule} (m: microbatches, p: pp={plan.pp})",
            f"microbatches={plan.microbatches}",
            f"set microbatches={runs}, or schedule=gpipe",
        )


@constraint(
    "tied",
    "`staleness` with `pp`, or `offload`, where units share a parameter",
    "a delayed update would wait for gradients of other stages; shared parameters are not sharded, "
    "so they would stay on the accelerator",
)
def _tied(plan: PlanFields, config: TrainingConfig) -> Iterator[Reason]:
    if config.tied and plan.staleness and plan.pp > 1:
        yield (
            "no staleness with pp where units share a parameter: their gradients are added up",
            f"staleness={plan.staleness}",
            "drop staleness, or untie the units in the model",
        )
    if config.tied and plan.offload != "none":
        yield (
            "no offload where units share a parameter, which is not sharded",
            f"offload={plan.offload}",
            "drop offload, or untie the units in the model",
        )


@constraint(
    "replicas",
    "`sync`, `gradients`, `balance`, `zero` or `bn=sync` with `dp=1`",
    "has no effect here",
)
def _replicas(plan: PlanFields, config: TrainingConfig) -> Iterator[Reason]:
    idle = {
        f"zero={plan.zero}": plan.zero > 0,
        f"sync={plan.sync}": plan.sync != "overlapped",
        f"gradients={plan.gradients}": plan.gradients != "fp32",
        f"balance={plan.balance}": plan.balance != "none",
        f"bn={plan.bn}": plan.bn == "sync",
    }
    for found, is_set in idle.items():
        if plan.dp == 1 and is_set:
            yield f"replicas (dp > 1) for {found}", "dp=1", f"drop {found}"


@constraint("sync", "`zero` with `sync=blocking`", "sharding reduces gradients itself")
def _blocking_shards(plan: PlanFields, config: TrainingConfig) -> Iterator[Reason]:
    if plan.zero and plan.sync == "blocking":
        yield (
            "sync=overlapped with zero, which reduces gradients itself",
            "sync=blocking",
            "drop sync or zero",
        )


@constraint(
    "zero", "`zero=2` with `pp`", "equal to `zero=1`: a pipeline reduces gradients once a step"
)
def _pipelined_zero(plan: PlanFields, config: TrainingConfig) -> Iterator[Reason]:
    if plan.zero == 2 and plan.pp > 1:
        yield (
            "zero=1 or zero=3 in a pipeline: it reduces gradients once a step, as zero=1 does",
            "zero=2",
            "use zero=1",
        )


@constraint(
    "shard",
    "`shard` without `zero`, or that is not a proper divisor of `dp`",
    "all sharding groups have the same size",
)
def _shard(plan: PlanFields, config: TrainingConfig) -> Iterator[Reason]:
    if plan.shard is None:
        return
    if not plan.zero:
        yield "zero where shard is given", f"shard={plan.shard}", "add zero=3"
    elif plan.shard >= plan.dp or plan.dp % plan.shard:
        yield (
            f"shard to be a proper divisor of dp={plan.dp}",
            f"shard={plan.shard}",
            "choose a smaller divisor of dp",
        )


@constraint(
    "offload", "`offload` without `zero`, or without an accelerator", "nothing would be offloaded"
)
def _offload(plan: PlanFields, config: TrainingConfig) -> Iterator[Reason]:
    if plan.offload == "cpu" and not plan.zero:
        yield "zero where offload is given", "offload=cpu", "add zero=3"
    elif plan.offload == "cpu" and config.device_kind == "cpu":
        yield "an accelerator to offload from", "a CPU", "drop offload"


@constraint(
    "tp",
    "`tp` that does not divide heads or features, or for a model without layers to split",
    "a head is not split",
)
def _tensor(plan: PlanFields, config: TrainingConfig) -> Iterator[Reason]:
    if plan.tp > 1 and not config.tensor_sizes:
        yield "a model that declares linear layers to split for tp", "none", "drop tp"
    for size in config.tensor_sizes if plan.tensor == "1d" else ():
        if size % plan.tp:
            yield (
                f"tp to divide the {size} heads or features that the model splits",
                f"tp={plan.tp}",
                "choose a divisor",
            )


@constraint(
    "sp",
    "`sp` without `tp`, with more ranks than parts of the tokens, or for images",
    "sequence parallelism splits the tokens that `tp` replicates",
)
def _tokens(plan: PlanFields, config: TrainingConfig) -> Iterator[Reason]:
    if plan.sp and plan.tp == 1:
        yield "tp > 1 for sp: it splits the tokens that tp replicates", "tp=1", "add tp=2"
    if plan.sp:
        yield from _token_parts("sp", "tp", plan.tp, config)


def _token_parts(field: str, axis: str, ranks: int, config: TrainingConfig) -> Iterator[Reason]:
    """Yield a reason if ``field`` leaves some of ``ranks`` on ``axis`` without tokens."""
    if config.tokens is None:
        yield f"units that work token by token for {field}", "a model of images", f"drop {field}"
    elif -(-config.tokens // ranks) * (ranks - 1) >= config.tokens:
        yield (
            f"a part of the {config.tokens} tokens of a sample for each rank under {field}",
            f"{axis}={ranks}, which leaves ranks without tokens",
            f"lower {axis}" if field == axis else f"lower {axis}, or drop {field}",
        )


@constraint(
    "cp",
    "`cp` with more ranks than parts of the tokens, or for images",
    "context parallelism splits the tokens of each sample",
)
def _context(plan: PlanFields, config: TrainingConfig) -> Iterator[Reason]:
    if plan.cp > 1:
        yield from _token_parts("cp", "cp", plan.cp, config)


@constraint(
    "cp",
    "`cp` with `sp`, `zbv` or `compile`",
    "tokens are split over one axis; a ring of messages inside a pass is neither split in two nor "
    "compiled",
)
def _context_alone(plan: PlanFields, config: TrainingConfig) -> Iterator[Reason]:
    unsupported = {
        "sp=on": plan.sp,
        f"schedule={plan.schedule}": _splits_backward(plan),
        "compile=on": plan.compile,
    }
    for found, is_set in unsupported.items():
        if plan.cp > 1 and is_set:
            yield f"no {found} with cp={plan.cp}", found, f"drop {found}, or cp"


@constraint(
    "tensor",
    "`tensor` whose arrangement the `tp` ranks do not form",
    "a square (2d), a square times a depth above 1 (2.5d), or a cube (3d)",
)
def _arrangement(plan: PlanFields, config: TrainingConfig) -> Iterator[Reason]:
    if plan.tensor != "1d" and not plan.tensor_axes:
        sizes = {"2d": "4, 9, 16, ...", "2.5d": "8, 12, 16, 18, ...", "3d": "8, 27, 64, ..."}
        yield (
            f"tp to be one of {sizes[plan.tensor]} under tensor={plan.tensor}",
            f"tp={plan.tp}",
            "choose one of them, or drop tensor",
        )


@constraint(
    "tensor",
    "`tensor` whose sides do not divide micro-batches, heads or features, or for a model without "
    "encoder layers",
    "samples and features are split evenly; only layers that work token by token are split",
)
def _arranged_sizes(plan: PlanFields, config: TrainingConfig) -> Iterator[Reason]:
    if not plan.tensor_axes:
        return
    given, side = f"tensor={plan.tensor}", plan.tensor_axes["j"]
    if config.tokens is None:
        yield f"units that work token by token for {given}", "none", "drop tensor"
    for size in config.tensor_sizes:
        # Under 3d two axes split the features of a weight, which the model has more of than heads.
        parts = side**2 if plan.tensor == "3d" and size == max(config.tensor_sizes) else side
        if size % parts:
            yield (
                f"{parts} to divide the {size} heads or features that the model splits",
                f"{given} with a side of {side} (tp={plan.tp})",
                "choose another tp, or drop tensor",
            )
    microbatch = config.global_batch_size // (plan.dp * plan.microbatches)
    if microbatch % plan.batch_parts:
        yield (
            f"micro-batches of a multiple of {plan.batch_parts} samples, which {given} splits",
            f"{microbatch}",
            "lower microbatches or dp, or drop tensor",
        )


@constraint(
    "tensor",
    "`tensor` with `sp`, `cp`, `zero`, `compile`, or `dp` with `sync=overlapped`",
    "tokens are whole, parameters are DTensors on two or three axes, which neither FSDP2 nor "
    "DistributedDataParallel takes, and collectives are autograd functions",
)
def _arranged_with(plan: PlanFields, config: TrainingConfig) -> Iterator[Reason]:
    if plan.tensor == "1d":
        return
    unsupported = {
        "sp=on": plan.sp,
        f"cp={plan.cp}": plan.cp > 1,
        f"zero={plan.zero}": plan.zero > 0,
        "compile=on": plan.compile,
    }
    for found, is_set in unsupported.items():
        if is_set:
            yield f"no {found} with tensor={plan.tensor}", found, f"drop {found}"
    if plan.dp > 1 and not plan.zero and plan.sync == "overlapped":
        yield (
            f"no overlapped all-reduce with tensor={plan.tensor}, whose parameters are DTensors",
            "sync=overlapped",
            "add sync=blocking",
        )


def _splits_backward(plan: PlanFields) -> bool:
    return plan.pipeline is not None and plan.pipeline.split_backward


@constraint(
    "split_backward",
    "`zbv` with `sync=overlapped`",
    "DistributedDataParallel reduces a weight's gradient after the backward pass for inputs, "
    "before it is computed (pytorch#144530); `sync=blocking` and `zero` are correct",
)
def _split_and_overlapped(plan: PlanFields, config: TrainingConfig) -> Iterator[Reason]:
    if _splits_backward(plan) and plan.dp > 1 and not plan.zero and plan.sync == "overlapped":
        yield (
            f"no overlapped all-reduce under schedule={plan.schedule}: it would come too early",
            "sync=overlapped",
            "add sync=blocking or zero=1",
        )


@constraint(
    "split_backward",
    "`zbv` with `zero=3`",
    "parameters are freed after the backward pass for inputs, and weight gradients are lost",
)
def _split_and_freed(plan: PlanFields, config: TrainingConfig) -> Iterator[Reason]:
    if _splits_backward(plan) and plan.zero == 3:
        yield (
            f"zero=1 under schedule={plan.schedule}: zero=3 frees parameters too early",
            "zero=3",
            "use zero=1, or schedule=interleaved",
        )


@constraint("split_backward", "`zbv` with `compile`", "a compiled backward pass cannot be split")
def _split_and_compiled(plan: PlanFields, config: TrainingConfig) -> Iterator[Reason]:
    if _splits_backward(plan) and plan.compile:
        yield (
            f"no compile under schedule={plan.schedule}: a compiled backward pass cannot be split",
            "compile=on",
            "drop compile, or use schedule=interleaved",
        )


@constraint(
    "split_backward",
    "`zbv` with `recompute`",
    "both halves of a split backward pass would recompute",
)
def _split_and_recomputed(plan: PlanFields, config: TrainingConfig) -> Iterator[Reason]:
    if _splits_backward(plan) and plan.recompute:
        yield (
            f"no recompute under schedule={plan.schedule}: both backward passes would recompute",
            f"recompute={'full' if plan.recompute == 1 else plan.recompute}",
            "drop recompute, or use schedule=1f1b",
        )


@constraint(
    "split_backward",
    "`zbv` with `bn=sync`",
    "SyncBatchNorm is an autograd function, which a split backward pass handles incorrectly "
    "(pytorch#166577)",
)
def _split_and_synchronized(plan: PlanFields, config: TrainingConfig) -> Iterator[Reason]:
    if _splits_backward(plan) and plan.bn == "sync" and config.batch_norm:
        yield (
            f"no bn=sync under schedule={plan.schedule}: its collectives cannot be split",
            "bn=sync",
            "use bn=deferred, or schedule=interleaved",
        )


@constraint(
    "compile",
    "`compile` on the CPU without a C++ compiler",
    "torch.compile cannot generate kernels",
)
def _compiler(plan: PlanFields, config: TrainingConfig) -> Iterator[Reason]:
    if plan.compile and not config.compiler:
        yield (
            "a C++ compiler for compile=on on the CPU",
            "none",
            "install g++, set the variable CXX to another, or drop compile",
        )


@constraint("recompute", "`recompute` above the number of units", "nothing would be recomputed")
def _recompute(plan: PlanFields, config: TrainingConfig) -> Iterator[Reason]:
    if plan.recompute > config.units:
        yield (
            f"recompute to be at most the number of units, {config.units}",
            f"recompute={plan.recompute}",
            "lower recompute",
        )


@constraint(
    "bn",
    "`bn` without BatchNorm in the model, or `bn=deferred` with one micro-batch",
    "has no effect here",
)
def _batch_norm(plan: PlanFields, config: TrainingConfig) -> Iterator[Reason]:
    if plan.bn != "micro" and not config.batch_norm:
        yield "BatchNorm in the model where bn is given", "none", "drop bn"
    if plan.bn == "deferred" and plan.microbatches == 1:
        yield (
            "more than one micro-batch for bn=deferred to merge",
            "microbatches=1",
            "drop bn",
        )


@constraint(
    "order",
    "`order` that keeps the axes of more than one rank in the default order",
    "has no effect here",
)
def _order(plan: PlanFields, config: TrainingConfig) -> Iterator[Reason]:
    default = FIELDS["order"].default
    sizes = {"dp": plan.dp, "pp": plan.pp, "tp": plan.cp * plan.tp}  # cp ranks are beside tp ranks
    used, implied = (
        [axis for axis in order.split("-") if sizes[axis] > 1] for order in (plan.order, default)
    )
    if plan.order != default and used == implied:
        yield (
            "order to move axes of more than one rank",
            f"order={plan.order}, equal to {default} for this plan",
            "drop order",
        )


@constraint("links", "`links` with `pp=1`", "has no effect here")
def _links(plan: PlanFields, config: TrainingConfig) -> Iterator[Reason]:
    if plan.links != "none" and plan.pp == 1:
        yield f"a pipeline (pp > 1) for links={plan.links}", "pp=1", "drop links"


@constraint(
    "program",
    "`staleness`, `links` or `gradients=powersgd` with `zero`, `tp`, `cp`, `compile`, "
    "`sync=blocking`, `interleaved` or `zbv`",
    "the program executor runs them; it supports `1f1b`, `gpipe`, and weights that are neither "
    "sharded nor compiled",
)
def _programmed(plan: PlanFields, config: TrainingConfig) -> Iterator[Reason]:
    if not plan.delays_or_compresses:
        return
    unsupported = {
        f"zero={plan.zero}": plan.zero > 0,
        f"tp={plan.tp}": plan.tp > 1,
        f"cp={plan.cp}": plan.cp > 1,
        "compile=on": plan.compile,
        "sync=blocking": plan.sync == "blocking",
        f"schedule={plan.schedule}": plan.stages > 1,
    }
    for found, is_set in unsupported.items():
        if is_set:
            yield f"no {found} with {', '.join(plan.deviations)}", found, f"drop {found}"


@constraint(
    "powersgd",
    "`gradients=powersgd` with `precision=fp16`",
    "the error feedback would be added to gradients of another loss scale",
)
def _scaled_residues(plan: PlanFields, config: TrainingConfig) -> Iterator[Reason]:
    if plan.gradients == "powersgd" and plan.precision == "fp16":
        yield "one loss scale with gradients=powersgd", "precision=fp16", "use precision=bf16"


@constraint(
    "flush",
    "`flush=off` without `staleness` and `pp`, or with a schedule other than `1f1b`",
    "without a flush, passes of the next step begin before the update of this step",
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


@constraint(
    "lengths",
    "`balance` of samples of equal lengths; `sp`, `cp`, `tensor`, `compile` or `links=topk` with "
    "samples of different lengths (`filled = false`)",
    "there is nothing to balance; the number of tokens changes from step to step, and top-k may "
    "make a token look like padding",
)
def _lengths(plan: PlanFields, config: TrainingConfig) -> Iterator[Reason]:
    if config.filled and plan.balance != "none":
        found = f"balance={plan.balance}"
        yield f"samples of different lengths (filled = false) for {found}", "none", f"drop {found}"
    unsupported = {
        "sp=on": plan.sp,
        f"cp={plan.cp}": plan.cp > 1,
        f"tensor={plan.tensor}": plan.tensor != "1d",
        "compile=on": plan.compile,
        "links=topk": plan.links == "topk",
    }
    for found, is_set in unsupported.items():
        if is_set and not config.filled:
            yield f"no {found} with samples of different lengths", found, f"drop {found}"
