"""Say in one sentence why one plan is projected to be slower than another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hybridperf.projection.project import Projection

__all__ = ["duration", "parts_of", "why_slower"]

_UNITS: Final = {"h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
_ALIKE: Final = 1e-3  #: relative difference of steps below which it is not worth a reason


def parts_of(projection: Projection) -> dict[str, float]:
    """Return the seconds of a step by what ranks do in them, in the mean; they add up to it."""
    idle_s = projection.idle_share * projection.step_s
    exposed_s = projection.exposed_communication_s
    return {
        "computing": projection.step_s - idle_s - exposed_s,
        "exposed communication": exposed_s,
        "waiting for other stages": idle_s,
    }


def why_slower(slower: Projection, faster: Projection) -> str:
    """Return by how much ``slower`` is, and which part of the step grew most, as a sentence."""
    more_s = slower.step_s - faster.step_s
    if more_s < _ALIKE * faster.step_s:
        return f"{slower.plan} is projected to take as long."
    before, after = parts_of(faster), parts_of(slower)
    part = max(after, key=lambda name: after[name] - before[name])
    longer = f"{duration(more_s)} ({more_s / faster.step_s:.1%})"
    figures = f"{duration(after[part])} a step against {duration(before[part])}"
    return f"{slower.plan} takes {longer} longer, mostly {part}: {figures}."


def duration(seconds: float) -> str:
    """Return ``seconds`` to three digits, in the largest unit of which there is at least one."""
    unit = next((name for name, size in _UNITS.items() if seconds >= size), "us")
    value = seconds / _UNITS[unit]
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
