"""The factor that a round's own tools left beside a result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from suite.logs.strict_json import parse_object, read_bounded, reason
from suite.scores.rcp import Verdict

if TYPE_CHECKING:
    from suite.logs.package import Result

__all__ = ["published_factor"]

_FILE_CAP: Final = 2**20
_MOST: Final = 1e6  #: a larger factor was not measured


def published_factor(result: Result) -> Verdict:
    """Return the factor that the round's own tools left in ``scaling.json``, or 1 without one."""
    path = result.package.folder / "scaling.json"
    try:
        factor = parse_object(read_bounded(path, _FILE_CAP).decode()).get("scaling_factor")
    except FileNotFoundError:
        return Verdict(None, "published without scaling.json, so with 1", factor=1.0)
    except (OSError, ValueError) as error:
        return Verdict(None, f"scaling.json: {reason(error)}")
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor < _MOST:
        return Verdict(None, f"scaling.json: a factor of {factor!r:.40}")
    return Verdict(None, "as published in scaling.json", factor=float(factor))
