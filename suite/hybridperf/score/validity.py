"""The judgement on a result, and its consequence for the score."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hybridperf.rules.evidence import Trust

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Judgement", "Validity"]


class Judgement(enum.StrEnum):
    """The judgement of the rules on a result.

    Only valid results have places, and only valid and provisional ones have official scores.
    """

    VALID = "valid"
    MISSED = "did not converge"  #: more runs missed the target than may
    PROVISIONAL = "provisional"  #: fewer runs than required
    SUPERSEDED = "superseded"  #: withdrawn by its publisher, since a later result replaces it
    WITHDRAWN = "withdrawn"  #: withdrawn by its publisher
    DISPUTED = "disputed"  #: another result of equal right has the same runs
    BROKEN = "broken"  #: it breaks a rule
    NOT_JUDGED = "not judged"  #: no ruleset knows it, or this machine cannot read it


@dataclass(frozen=True, slots=True)
class Validity:
    """The verdict of a ruleset on a result and on each of its logs."""

    judgement: Judgement
    why: str = ""  #: reason why the result is not valid
    ruleset: str = ""  #: name of the ruleset; "" if none judged
    logs: int = 0  #: number of logs
    #: run number -> first error of its log; None if logs are not judged one by one
    errors: Mapping[int, str] | None = None
    trust: Trust = field(default_factory=Trust)  #: its verification level

    def error_of(self, run: int) -> str | None:
        """Return the first error in the log of ``run``; "" for none, None if not judged."""
        return None if self.errors is None else self.errors.get(run, "")

    @property
    def words(self) -> str:
        """Return the verdict in words, such as ``9 of 10 valid``."""
        if self.judgement is Judgement.NOT_JUDGED:
            return "not judged"
        if self.judgement in {Judgement.BROKEN, Judgement.DISPUTED} and not self.errors:
            return self.judgement.value
        wrong = len(self.errors or ())
        return f"{self.logs - wrong} of {self.logs} valid" if wrong else "valid"
