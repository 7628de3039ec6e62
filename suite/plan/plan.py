"""The parallel plan: how training is spread over devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from suite.plan.check import misfits
from suite.plan.text import parse_fields, write_slug, write_text

if TYPE_CHECKING:
    from suite.findings import Finding
    from suite.plan.facts import ChainFacts

__all__ = ["BatchNormMode", "ParallelPlan", "Precision", "Schedule", "Sync"]

Sync = Literal["overlapped", "blocking"]
Schedule = Literal["gpipe", "1f1b", "interleaved", "zbv"]
Precision = Literal["fp32", "bf16", "fp16"]
BatchNormMode = Literal["micro", "deferred", "sync"]


@dataclass(frozen=True, slots=True)
class ParallelPlan:
    """How training is spread: ``dp`` replicas, each a pipeline of ``pp`` times ``tp`` ranks.

    A replica's share of the global batch is cut into ``microbatches``. ``str(plan)`` is the
    canonical text, ``ParallelPlan.parse`` its inverse; both leave out what is at its default.
    """

    dp: int = 1
    sync: Sync = "overlapped"  #: whether gradients are summed during the backward pass or after
    zero: Literal[0, 1, 2, 3] = 0  #: replicas share optimiser state; 2: gradients; 3: parameters
    shard: int | None = None  #: replicas that share one copy; None for all, where zero > 0
    offload: Literal["none", "cpu"] = "none"  #: where what zero shards rests between its uses
    tp: int = 1
    sp: bool = False  #: between the linears that tp splits, ranks hold parts of the tokens
    pp: int = 1
    schedule: Schedule | None = None  #: None exactly where there is no pipeline
    stages: int = 1  #: of the pipeline on each rank; more than 1 where the schedule says so
    microbatches: int = 1
    recompute: int = 0  #: units from one recomputed in the backward pass to the next; 0 for none
    precision: Precision = "fp32"
    compile: bool = False
    bn: BatchNormMode = "micro"  #: over what BatchNorm takes its statistics

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``"dp=2,pp=2,schedule=1f1b,microbatches=4"``; keys may stand in any order.

        A pipeline's schedule defaults to ``1f1b`` and its micro-batches to ``pp``.

        Raises:
            Refusal: exit status 2, naming the key and what may stand there.
        """
        return cls(**parse_fields(text))

    def __str__(self) -> str:
        return write_text(self)

    @property
    def slug(self) -> str:
        """Return the text form for file names: ``dp2-pp2-1f1b-m4``."""
        return write_slug(self)

    @property
    def ranks(self) -> int:
        """Return the number of processes the plan needs."""
        return self.dp * self.pp * self.tp

    @property
    def shards(self) -> int:
        """Return the number of replicas that share one copy; 1 without zero."""
        return (self.shard or self.dp) if self.zero else 1

    @property
    def pipeline_stages(self) -> int:
        """Return the stages of a replica's pipeline, over all of its ranks."""
        return self.pp * self.stages

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Return which stages a rank of the pipeline holds: in turns, or in a V for ``zbv``."""
        if self.schedule == "zbv":
            return rank, self.pipeline_stages - 1 - rank
        return tuple(range(rank, self.pipeline_stages, self.pp))

    def batch_norm_span(self, global_batch_size: int) -> int:
        """Return over how many samples a BatchNorm layer normalises."""
        replicas = 1 if self.bn == "sync" else self.dp
        return global_batch_size // (replicas * self.microbatches)

    def check(self, facts: ChainFacts) -> list[Finding]:
        """Return what keeps this plan from running on ``facts``; empty where nothing does."""
        return list(misfits(self, facts))
