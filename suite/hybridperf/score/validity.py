"""Hold what a ruleset says of the logs of a result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hybridperf.evidence.trust import Trust

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Validity"]


@dataclass(frozen=True, slots=True)
class Validity:
    """The verdict of a ruleset on a result or on each of its logs; none without a ruleset."""

    ruleset: str = ""  #: that judged; "" if none did
    logs: int = 0  #: number of logs
    #: run number -> first error of its log; None if it is the result that is valid or not
    errors: Mapping[int, str] | None = None
    broken: str = ""  #: the first error that makes the result invalid
    trust: Trust = field(default_factory=Trust)  #: the rung that it reaches

    def error_of(self, run: int) -> str | None:
        """Return what is wrong with the log of ``run``; "" for nothing, None if not judged."""
        return None if self.errors is None else self.errors.get(run, "")

    @property
    def words(self) -> str:
        """Return the verdict in words, such as ``9 of 10 valid``."""
        if not self.ruleset:
            return "not judged"
        if self.broken:
            return "invalid"
        wrong = len(self.errors or ())
        return f"{self.logs - wrong} of {self.logs} valid" if wrong else "valid"
