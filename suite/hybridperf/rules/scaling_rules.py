"""Rules for scaling claims: a claim names its base, and its figures follow from the logs.

A claim is a file in the result's folder.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hybridperf.errors import UserError
from hybridperf.log.rounds import read_package
from hybridperf.rules.rule import Deviation, rule
from hybridperf.score.scaling import CLAIM, METRICS, read_claim, scale, side_of, verify_claim
from hybridperf.score.scaling.claim import log_hashes
from hybridperf.untrusted import reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridperf.findings import Finding
    from hybridperf.log.package import Result
    from hybridperf.score.scaling import Claim, Scaled
    from hybridperf.tasks.task import Task

_SOURCE: Final = "HybridPerf rules, section 7: claims of scaling"
_AGAIN: Final = "claim it again with 'hybridperf scale', or remove the claim"


@rule("scaling.claim", scope="result", source=_SOURCE, remedy=_AGAIN)
def claim_is_readable(result: Result, task: Task) -> Iterator[Deviation]:
    """A claim of scaling is JSON that names base, devices, kind and figures."""
    if problem := _claimed(result).problem:
        yield Deviation("a claim that can be read", problem, path=_place(result))


@rule(
    "scaling.base",
    scope="result",
    source=f"{_SOURCE} name their base",
    remedy="publish the base as it was, or claim it again with 'hybridperf scale'",
)
def base_is_there(result: Result, task: Task) -> Iterator[Deviation]:
    """The base that a claim names exists, with the logs that the claim was made from."""
    claim = _claimed(result).claim
    if claim is None:
        return
    place = _place(result)
    try:
        logs = dict(log_hashes(claim.base))
    except (OSError, ValueError) as error:
        yield Deviation(f"logs in {claim.base.name}", reason(error), path=place)
        return
    if not logs:
        yield Deviation(f"the base {claim.base.name}", "none", path=place)
    elif logs != claim.logs:
        other = [name for name in {*logs, *claim.logs} if logs.get(name) != claim.logs.get(name)]
        found = f"{min(other):.40} differs, or is there on one side only"
        yield Deviation(f"the logs of {claim.base.name} that are claimed", found, path=place)


@rule(
    "scaling.software",
    scope="result",
    source=f"{_SOURCE} are within one software",
    remedy="make base and result again with one version of all software, on devices of one model",
)
def software_is_the_bases(result: Result, task: Task) -> Iterator[Deviation]:
    """Result and base have the same framework, harness and trainer, and devices of one model."""
    scaled = _claimed(result).scaled
    if scaled is None:
        return
    names = ("framework", "suite_sha256", "trainer_sha256", "devices")
    own_facts, base_facts = ((*side.software, side.hardware) for side in (scaled.side, scaled.base))
    for name, own, base in zip(names, own_facts, base_facts, strict=True):
        if own != base:
            yield Deviation(f"{name} {base:.40}, as in the base", f"{own:.40}", path=_place(result))


@rule(
    "scaling.metric",
    scope="result",
    source=f"{_SOURCE} name their metric",
    remedy="claim the metric that was measured",
)
def metric_is_measured(result: Result, task: Task) -> Iterator[Deviation]:
    """Each figure names a metric that both result and base measured."""
    claim, scaled = _claimed(result).claim, _claimed(result).scaled
    for name in claim.unknown if claim else ():
        yield Deviation(
            f"a metric out of {', '.join(METRICS)}", f"{name!r:.80}", path=_place(result)
        )
    if claim is None or scaled is None:
        return
    known = {each.metric: each for each in scaled.efficiencies}
    for figure in claim.figures:
        if known[figure.metric].value is None:
            expected = f"no figure by {figure.metric}: {known[figure.metric].why}"
            yield Deviation(expected, f"{figure.value:.4f}", path=_place(result))


@rule("scaling.figure", scope="result", source=f"{_SOURCE} follow from logs", remedy=_AGAIN)
def figures_follow(result: Result, task: Task) -> Iterator[Deviation]:
    """Figures, intervals, devices and kind follow from the logs and may be claimed."""
    claimed = _claimed(result)
    if claimed.refusal is not None:
        expected, found = claimed.refusal.expected, claimed.refusal.found
        yield Deviation(f"a scaling: {expected}", found, path=_place(result))
    if claimed.claim is None or claimed.scaled is None:
        return
    for expected, found in verify_claim(claimed.claim, claimed.scaled):
        yield Deviation(expected, found, path=_place(result))


@dataclass(frozen=True, slots=True)
class _Claimed:
    """What a result claims, and the scaling that follows from the logs."""

    claim: Claim | None = None  #: None if it is missing or unreadable
    problem: str = ""  #: why it is unreadable
    scaled: Scaled | None = None  #: None if it cannot be computed
    refusal: Finding | None = None  #: why it cannot be, if the base has logs


@functools.lru_cache(maxsize=1)  # all rules judge one result before the next
def _claimed(result: Result) -> _Claimed:
    try:
        claim = read_claim(result.package)
    except (OSError, ValueError) as error:
        return _Claimed(problem=reason(error))
    if claim is None or next(claim.base.folder.glob("result_*.txt"), None) is None:
        return _Claimed(claim)
    try:
        sides = [side_of(read_package(claim.base)), side_of(result)]
        (scaled,) = scale(sides, cause=claim.cause).results
    except UserError as error:
        refusal = error.finding
    else:
        return _Claimed(claim, scaled=scaled)
    assert refusal is not None  # always set by `side_of` and `scale`
    return _Claimed(claim, refusal=refusal)


def _place(result: Result) -> str:
    return result.package.name_of(result.package.folder / CLAIM)
