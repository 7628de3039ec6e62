"""Performance regressions: decide whether a result is slower than its baseline by a limit.

``hybridperf compare --fail-if-slower`` and ``pytest --hp-baseline`` share this decision. A result
is slower if the ratio of the mean times exceeds the limit and the test finds that the means differ.
It is not slower if the whole interval of the ratio is within the limit. Else it is undecided.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import visible
from hybridperf.log.package import find_packages
from hybridperf.report.comparison import incomparable
from hybridperf.report.judgement import judged_entries
from hybridperf.score.compare import compare
from hybridperf.score.validity import Judgement

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.report.judgement import JudgedResult
    from hybridperf.score.compare import Comparison
    from hybridperf.score.statistics import Interval

__all__ = ["Baseline", "Regression", "parse_percentage"]

_PERCENTAGE: Final = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?) ?%")
_UNFIT: Final = frozenset({Judgement.BROKEN, Judgement.DISPUTED})  #: as a baseline


def parse_percentage(text: str) -> float:
    """Return the share that ``text`` states, such as 0.03 for ``3%``.

    Raises:
        UserError: exit status 2 if it is anything else than a percentage below 1000.
    """
    if (match := _PERCENTAGE.fullmatch(text.strip())) is None:
        raise UserError.of("regression.limit", "a percentage", repr(text), "write it as 3%")
    return float(match[1]) / 100


@dataclass(frozen=True, slots=True)
class Regression:
    """The decision whether result B of a comparison, with baseline A, is slower than a limit."""

    comparison: Comparison
    limit: float  #: share of the baseline's time by which B may be slower

    @property
    def _interval(self) -> Interval | None:
        return self.comparison.decision.interval

    @property
    def outcome(self) -> Literal["slower", "not slower", "undecided"]:
        """Return the decision."""
        decision, interval = self.comparison.decision, self._interval
        most = 1 + self.limit
        if decision.verdict == "slower" and decision.ratio is not None and decision.ratio > most:
            return "slower"
        if interval is not None and interval.high <= most:
            return "not slower"
        return "undecided"

    @property
    def sentence(self) -> str:
        """Return the decision in a sentence, with the ratio, its interval and the p-value."""
        decision, interval = self.comparison.decision, self._interval
        limit = f"by more than {self.limit * 100:.3g} %"
        undecided = self.outcome == "undecided"
        head = f"undecided whether slower {limit}" if undecided else f"{self.outcome} {limit}"
        if decision.ratio is None:
            return f"{head}: it takes runs of both results that reached the target"
        text = f"{head}: {decision.ratio:.3f} times the mean time of the baseline"
        if interval is not None:
            text += f" (95 % interval {interval.low:.3f} to {interval.high:.3f})"
        if decision.test is None:
            return f"{text}; a test takes two runs of each result, with unequal times"
        more = "; more runs of both results decide" if undecided else ""
        return f"{text}, p = {decision.test.p_value:.2g}{more}"

    def as_json(self) -> dict[str, object]:
        """Return the decision as a JSON-serialisable dictionary."""
        return {"limit": self.limit, "outcome": self.outcome, "sentence": self.sentence}


class Baseline:
    """The results in a folder, which later results are compared with.

    Raises:
        UserError: exit status 4 if there is none.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._packages = find_packages(folder)
        if not self._packages:
            raise UserError.of(
                "regression.baseline",
                "results of earlier runs",
                "none",
                "name the folder that hybridperf run or pytest --benchmark wrote with --out or "
                "--hp-out",
                path=visible(str(folder)),
                exit_code=ExitCode.ENVIRONMENT,
            )

    def compared_with(self, result: JudgedResult, limit: float) -> Regression:
        """Compare ``result`` with the baseline's result of the same benchmark and plan.

        Of several, it is the one of the same system. The plan may differ if the folder is that of
        one result.

        Raises:
            UserError: exit status 4 if there is no such result or it breaks a rule, 2 if it is of
                another version of the task or other data.
        """
        package, where = result.result.package, visible(str(self._folder))
        same = [each for each in self._packages if each.benchmark == package.benchmark]
        found = judged_entries(same)
        if [each.folder for each in self._packages] != [self._folder.absolute()]:
            found = [each for each in found if each.score.plan == result.score.plan]
        if len(found) > 1:
            found = [each for each in found if each.score.system == result.score.system] or found
        if len(found) != 1:
            raise UserError.of(
                "regression.baseline",
                f"one result of {result.benchmark} under {result.score.plan}",
                str(len(found) or "none"),
                "name the folder of one result" if found else "make it",
                path=where,
                exit_code=ExitCode.ENVIRONMENT,
            )
        (base,) = found
        if finding := incomparable(result, base, where):
            raise UserError(finding, ExitCode.USAGE)
        validity = base.official.validity
        if validity.judgement in _UNFIT:
            expected, remedy = "a baseline that complies with the rules", "make another"
            raise UserError.of(
                "regression.baseline", expected, validity.why, remedy, path=base.result.package.name
            )
        return Regression(compare(base.official, result.official), limit)
