"""How far the evaluations of a benchmark are apart, by formulas of the global batch size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hybridperf.rules.mlperf.formula import computed, names_in

__all__ = ["Cadence", "Due"]


@dataclass(frozen=True, slots=True)
class Due:
    """When evaluations are due at one batch size, as their lines count."""

    every: float
    first: float
    near: float  #: a distance that is a warning only
    near_first: float  #: a place of the first evaluation that is a warning only
    rounding: float  #: by which an evaluation may differ: a batch


@dataclass(frozen=True, slots=True)
class Cadence:
    """The distance of evaluations: formulas of ``batch``, the global batch size."""

    every: str
    unit: str  #: of what is counted, in words
    by: str = "epoch_num"  #: metadata of an evaluation that counts
    first: str = ""  #: place of the first evaluation; as far as others are apart, if not said
    first_earlier: bool = False  #: the first one may be anywhere before
    near: str = ""  #: a larger distance that is a warning only, such as before it is rounded down
    near_first: str = ""  #: the same of the first evaluation
    rounding: str = "0"
    total: Literal["", "train_samples"] = ""  #: key that logs count with, where lines stand still

    def __post_init__(self) -> None:
        """Refuse formulas of anything but ``batch``.

        Raises:
            ValueError: naming the formula.
        """
        for text in filter(None, self._formulas):
            if names_in(text) - {"batch"}:
                raise ValueError(f"{text!r}, which is no formula of batch")

    def due(self, batch: int) -> Due | None:
        """Return when evaluations are due at the global batch size ``batch``; None if never."""
        every, first, near, near_first, rounding = (
            computed(text, {"batch": batch}) if text else None for text in self._formulas
        )
        if every is None or every <= 0:
            return None
        near = every if near is None else near
        near_first = near_first or first or near
        return Due(every, first or every, near, near_first, rounding or 0.0)

    @property
    def _formulas(self) -> tuple[str, ...]:
        return self.every, self.first, self.near, self.near_first, self.rounding
