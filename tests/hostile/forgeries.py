"""Cheats of a lying operator: each writes a result by hand, and saves himself some of the work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hybridperf.log.chain import SUMS
from tests.evidence import LANDLOCK, SECRET, chain, describe_as_found
from tests.hostile.forging import (
    DAY_MS,
    as_another,
    claim_sandbox,
    copy_for_another,
    draw_seed,
    drop,
    drop_and_renumber,
    edited_after_signing,
    every_log,
    every_manifest,
    hand_nothing_over,
    hand_over_late,
    instant,
    no_predictions,
    one_log,
    other_predictions,
    raised_quality,
    repeat,
    run_next_month,
    same_times,
    sandboxed,
    score_the_last_only,
    signed_as_something_else,
    signed_by_oneself,
    swap,
    too_fast_for_cores,
    without_commitment,
)
from tests.packages import shift

if TYPE_CHECKING:
    from collections.abc import Callable

    from hybridperf.log.package import Package

__all__ = ["FORGERIES", "Forgery"]

H100S = {
    "accelerators_per_node": "8",
    "accelerator_model_name": "NVIDIA H100-SXM-80GB",
    "accelerator_memory_capacity": "80 GiB",
}


@dataclass(frozen=True)
class Forgery:
    """What a liar does, and the verification level at which the result stops."""

    name: str
    level: str
    apply: Callable[[Package], object]
    lacks: str  #: part of the missing requirement of the next level, as ``check`` says


FORGERIES = [
    # A cheating trainer's, or a liar's who is found out by the rules.
    Forgery(
        "the labels as a model of 602 numbers",
        "self-reported",
        every_manifest(model={"count": 1, "values": 602, "sha256": "1" * 64}),
        "run.model",
    ),
    Forgery(
        "a predictor that knows the answers",
        "self-reported",
        every_manifest(predictor={"package": "answers", "sha256": "1" * 64}),
        "run.model",
    ),
    Forgery("the target in no time", "self-reported", instant, "result.plausible"),
    Forgery("more than two cores compute", "self-reported", too_fast_for_cores, "result.plausible"),
    Forgery(
        "eight H100s that the harness did not find",
        "self-reported",
        lambda package: describe_as_found(package, **H100S),
        "result.hardware",
    ),
    Forgery(
        "eight H100s of which nothing is said but the name",
        "log-verified",
        lambda package: describe_as_found(package, **H100S, hybridperf={}),
        "a description with what the harness found",
    ),
    Forgery(
        "a slow run left out",
        "self-reported",
        lambda package: drop(package, 2),
        "result.attempts and 2 more",
    ),
    Forgery(
        "a slow run left out, its number given to another",
        "self-reported",
        drop_and_renumber,
        "no error by the rules",
    ),
    Forgery(
        "two runs in each other's place",
        "self-reported",
        swap,
        "result.chain",
    ),
    Forgery(
        "the fastest run twice",
        "self-reported",
        lambda package: repeat(package, later=False),
        "no error by the rules",
    ),
    Forgery(
        "the fastest run twice, with a day and a seed of its own",
        "self-reported",
        lambda package: repeat(package, later=True),
        "result.durations",
    ),
    Forgery("five runs made up out of one", "self-reported", same_times, "result.durations"),
    Forgery("another's runs", "self-reported", copy_for_another, "result.disputed"),
    Forgery(
        "a time stamp edited, and its log sealed anew",
        "self-reported",
        one_log(lambda bodies: shift(bodies, len(bodies) - 1, 1), again=False),
        "result.chain",
    ),
    Forgery("runs of next month", "self-reported", every_log(run_next_month), "run.date"),
    Forgery(
        "two runs at once on one machine",
        "self-reported",
        one_log(lambda bodies: shift(bodies, 0, -DAY_MS)),
        "result.overlap",
    ),
    Forgery("a seed of one's own choice", "self-reported", draw_seed, "result.committed_seeds"),
    Forgery(
        "a run with a bad seed left out, and the chain written anew",
        "self-reported",
        lambda package: chain(package, [(SECRET, nth) for nth in (1, 2, 4, 5, 6)]),
        "result.committed_seeds",
    ),
    Forgery(
        "a quality above that of the predictions",
        "self-reported",
        raised_quality,
        "result.predictions",
    ),
    Forgery("predictions that are none", "self-reported", other_predictions, "result.predictions"),
    Forgery(
        "predictions that are not there", "self-reported", no_predictions, "result.predictions"
    ),
    Forgery("another's organisation", "self-reported", as_another, "result.signature"),
    Forgery(
        "another's organisation, signed by oneself",
        "self-reported",
        signed_by_oneself,
        "result.signature",
    ),
    Forgery(
        "a manifest edited after it was signed",
        "self-reported",
        edited_after_signing,
        "result.signature",
    ),
    Forgery(
        "a signature that was made for another purpose",
        "self-reported",
        signed_as_something_else,
        "result.signature",
    ),
    # A liar's who keeps the rules, and has no evidence.
    Forgery(
        "logs that say nothing of what came before",
        "log-verified",
        without_commitment,
        "seeds committed before the first run",
    ),
    Forgery(
        "the good runs of two attempts at a result",
        "log-verified",
        lambda package: chain(
            package, [*((SECRET, nth) for nth in (1, 2, 3)), *(("6" * 64, nth) for nth in (4, 5))]
        ),
        "one commitment to the seeds",
    ),
    Forgery(
        "no list of hashes",
        "log-verified",
        lambda package: (package.folder / SUMS).unlink(),
        "SHA256SUMS",
    ),
    Forgery(
        "a trainer with all permissions",
        "chained",
        lambda package: sandboxed(package, "open", {"kind": "none", "why": "asked for"}),
        "a sandbox",
    ),
    Forgery(
        "a sandbox in the manifests alone",
        "self-reported",
        claim_sandbox,
        "run.manifest",
    ),
    Forgery(
        "a sandbox that is none",
        "chained",
        lambda package: sandboxed(package, "sandboxed", {"kind": "none", "why": "no Landlock"}),
        "a sandbox",
    ),
    Forgery(
        "a sandbox without its mode",
        "chained",
        lambda package: sandboxed(package, None, LANDLOCK),
        "a sandbox",
    ),
    Forgery(
        "a level that the manifest claims",
        "chained",
        every_manifest(model=None, rung="re-run", trust={"rung": "re-run"}),
        "the names of the model's tensors",
    ),
    Forgery(
        "no tensors", "chained", every_manifest(model=None), "the names of the model's tensors"
    ),
    Forgery(
        "weights that were saved after the clock",
        "chained",
        hand_nothing_over,
        "the weights that predicted last, handed over before the verdict",
    ),
    Forgery(
        "weights that were handed over after the verdict",
        "chained",
        hand_over_late,
        "the weights that predicted last, handed over before the verdict",
    ),
    Forgery(
        "no model on the way that was scored",
        "chained",
        score_the_last_only,
        "the score of an earlier model, drawn at random after the run",
    ),
    Forgery("no predictions", "chained", every_manifest(predictions=None), "the predictions"),
]
