"""How far a result can be believed: the rung it stands on, as every row shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["SELF_REPORTED", "Trust"]

SELF_REPORTED: Final = "self-reported"  #: the lowest rung: that of every log


@dataclass(frozen=True, slots=True)
class Trust:
    """The highest rung that a result reaches, computed from its evidence, never claimed."""

    rung: str = SELF_REPORTED
    evidence: str = ""  #: what names the rung's evidence: sandbox, key, time stamp, organisation
    lacks: str = ""  #: what the next rung takes; empty on the highest
    unverified: str = ""  #: stored evidence that this machine cannot verify again, and why

    @property
    def words(self) -> str:
        """Return rung and evidence for one cell of a table, the same on every machine."""
        return f"{self.rung} ({self.evidence})" if self.evidence else self.rung
