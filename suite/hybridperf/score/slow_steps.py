"""Say why steps are much slower than projected, as far as the parts of a step tell."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from hybridperf.score.beside_projection import BesideProjection, PartName

__all__ = ["MUCH_SLOWER", "Hint", "why_slow"]

MUCH_SLOWER: Final = 2.0  #: times as long as projected; healthy runs took up to 1.51 times


class Hint(NamedTuple):
    """What is wrong, as `hybridperf doctor` says it."""

    name: str
    detail: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.name}: {self.detail} -> {self.remedy}"


class _Cause(NamedTuple):
    name: str
    detail: Callable[[BesideProjection], str | None]  #: None if it is not the cause
    remedy: str


def why_slow(beside: BesideProjection | None) -> Hint | None:
    """Return a hint if a step takes `MUCH_SLOWER` times as long as projected, else None."""
    if beside is None or beside.step_s < MUCH_SLOWER * beside.projected_step_s:
        return None
    return next(
        Hint(cause.name, detail, cause.remedy)
        for cause in _CAUSES
        if (detail := cause.detail(beside)) is not None
    )


def _stretches(beside: BesideProjection) -> list[tuple[float, str]]:
    """Return how many times as long as projected each rank computes, with the rank's name."""
    return [
        (part.measured_s / part.projected_s, part.rank)
        for part in beside.parts
        if part.name == "computation" and part.projected_s > 0
    ]


def _slow_rank(beside: BesideProjection) -> str | None:
    stretches = _stretches(beside)
    if len(stretches) < 2:
        return None
    stretch, rank = max(stretches)
    others = median(each for each, name in stretches if name != rank)
    if stretch < MUCH_SLOWER * max(others, 1.0):
        return None
    return f"{rank} computes {stretch:.1f} times as long as projected, others {others:.1f} times"


def _slow_computation(beside: BesideProjection) -> str | None:
    least = min((stretch for stretch, _ in _stretches(beside)), default=0.0)
    if least < MUCH_SLOWER:
        return None
    return f"every rank computes at least {least:.1f} times as long as projected"


def _mostly(*names: PartName) -> Callable[[BesideProjection], str | None]:
    """Return a function that tells whether parts ``names`` explain half of the slowness."""

    def find(beside: BesideProjection) -> str | None:
        parts = [part for part in beside.parts if part.name in names]
        excess_s = sum(part.excess_s for part in parts)
        if 2 * excess_s < beside.step_s - beside.projected_step_s:
            return None
        measured_ms = sum(part.measured_s for part in parts) * 1e3
        projected_ms = sum(part.projected_s for part in parts) * 1e3
        what = " and ".join(names)
        return f"{what} take {measured_ms:,.1f} ms of a step, projected {projected_ms:,.1f} ms"

    return find


def _anything(beside: BesideProjection) -> str:
    return f"a step takes {beside.step_s / beside.projected_step_s:.1f} times as long as projected"


_CAUSES: Final = (  # the most specific first
    _Cause(
        "slow rank",
        _slow_rank,
        "See what else runs on its cores or device, and whether these are throttled or of another "
        "kind than the others.",
    ),
    _Cause(
        "oversubscription",
        _slow_computation,
        "Use no more ranks than there are cores or devices, and end other processes that compute.",
    ),
    _Cause(
        "slow links",
        _mostly("waiting", "exposed communication"),
        "See what else uses the links between ranks, and whether they run at the speed of their "
        "class.",
    ),
    _Cause(
        "slow input",
        _mostly("input"),
        "Keep the data on faster storage, or free cores for the processes that read it.",
    ),
    _Cause(
        "slow steps",
        _anything,
        "End other processes, measure this machine again with 'hybridperf plan', and run again.",
    ),
)
