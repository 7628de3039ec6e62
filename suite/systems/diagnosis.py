"""What the doctor says about one thing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Diagnosis", "judge"]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing that a run needs or gains by, whether it is here, and how to get it."""

    name: str
    status: Literal["ok", "missing", "optional"]  #: optional: lacking, but runs do without
    detail: str  #: what was found
    remedy: str = ""  #: one sentence; empty where all is well


def judge(
    name: str,
    good: bool,
    detail: str,
    remedy: str,
    *,
    needed: bool = True,
) -> Diagnosis:
    """Return ``ok``, or the remedy with ``missing`` or, where runs do without it, ``optional``."""
    if good:
        return Diagnosis(name, "ok", detail)
    return Diagnosis(name, "missing" if needed else "optional", detail, remedy)
