"""Write the page of checked claims that stands beside the leaderboard."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from hybridperf.claims.claim import ExpressionCheck, NoCheck, ProjectCheck
from hybridperf.claims.verdict import (
    ClaimVerdict,
    figures,
    found_words,
    interval_words,
    over_strongest,
    telling_conditions,
)
from hybridperf.log.package import ROUND
from hybridperf.report.page import page_templates, render_page, write_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from hybridperf.claims.claim import Claim, ClaimSource
    from hybridperf.claims.verdict import CheckedClaim, ClaimReading
    from hybridperf.report.judgement import JudgedResult

__all__ = ["claims_page", "write_claims"]

_MOST_READINGS: Final = 20  #: of a claim that the page lists
_REPOSITORIES: Final = "https://github.com/mlcommons/"


def write_claims(
    checked: Sequence[CheckedClaim], entries: Iterable[JudgedResult], out: Path
) -> list[Path]:
    """Write ``claims.html`` to ``out``, with links to the ``entries`` of the leaderboard there.

    Raises:
        OSError: if ``out`` cannot be written.
    """
    anchors = {
        (package.org, package.system, package.benchmark): entry.anchor
        for entry in entries
        for package in [entry.result.package]
    }
    return write_files([("claims.html", claims_page(checked, anchors))], out)


def claims_page(
    checked: Sequence[CheckedClaim], anchors: Mapping[tuple[str, str, str], str]
) -> str:
    """Return the HTML page of ``checked`` claims.

    ``anchors`` are of results of the leaderboard, by organisation, system and benchmark.
    """
    sources: dict[ClaimSource, list[CheckedClaim]] = {}
    for each in checked:
        sources.setdefault(each.claim.source, []).append(each)
    counts = Counter(each.verdict for each in checked)
    values = {
        "checked": checked,
        "sources": sources,
        "verdicts": {each: counts[each] for each in ClaimVerdict if counts[each]},
        "kinds": Counter(_evidence_kind(each.claim) for each in checked),
    }
    templates = page_templates(
        figures=figures,
        found_words=found_words,
        interval_words=interval_words,
        links_of=lambda claim: _links(claim, anchors),
        most_readings=_MOST_READINGS,
        nearest_first=_nearest_first,
        over_strongest=over_strongest,
        telling_conditions=telling_conditions,
    )
    return render_page(
        templates.get_template("claims.html.j2"), values, ["board.css", "claims.css"]
    )


def _nearest_first(checked: CheckedClaim) -> list[ClaimReading]:
    """Return the readings of a claim; those nearest to what is stated first, if they are many."""
    readings, stated = list(checked.evidence.readings), checked.claim.stated
    if stated is None or len(readings) <= _MOST_READINGS:
        return readings
    least, most = stated.least, stated.most
    return sorted(readings, key=lambda each: max(least - each.value, each.value - most))


def _evidence_kind(claim: Claim) -> str:
    match claim.check:
        case NoCheck():
            return "not at all"
        case ProjectCheck():
            return "by projection"
        case ExpressionCheck():
            return "by arithmetic"
    return "from logs"


def _links(claim: Claim, anchors: Mapping[tuple[str, str, str], str]) -> list[tuple[str, str]]:
    """Return the results that a claim names, with their addresses; "" if there is none."""
    return [(name, _address(name, anchors)) for name in claim.results]


def _address(name: str, anchors: Mapping[tuple[str, str, str], str]) -> str:
    match name.split("/"):
        case [folder, *inside] if ROUND.fullmatch(folder) and inside:
            return f"{_REPOSITORIES}{folder}/tree/main/{quote('/'.join(inside))}"
        case [*_, org, "results", system, benchmark]:
            anchor = anchors.get((org, system, benchmark))
            return f"index.html#{anchor}" if anchor else ""
    return ""
