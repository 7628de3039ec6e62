"""Check claims: the evidence of each, by the kind of its check, and the verdict that follows."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from hybridperf.claims.claim import ExpressionCheck, NoCheck, ProjectCheck, read_claims
from hybridperf.claims.expression import evaluate
from hybridperf.claims.grid import project_grid
from hybridperf.claims.logs import Archive, evidence_of_logs
from hybridperf.claims.verdict import Evidence, judge_claim
from hybridperf.errors import UserError
from hybridperf.spelling import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hybridperf.claims.claim import Claim
    from hybridperf.claims.verdict import CheckedClaim

__all__ = ["check_claims"]


def check_claims(
    files: Sequence[Path], roots: Sequence[Path], only: str | None = None
) -> list[CheckedClaim]:
    """Return the claims of ``files``, or the one with the id ``only``, with their verdicts.

    ``roots`` are the folders of the results and rounds that claims name.

    Raises:
        UserError: as `read_claims`; exit status 2 if two files have a claim of one id, if no claim
            has the id ``only``, or if a check names a task, system, plan or constant that is not
            known; the message names the claim.
    """
    claims: dict[str, Claim] = {}
    for path in dict.fromkeys(files):
        for claim in read_claims(path):
            if claim.id in claims:
                expected = f"ids that differ from those in {claims[claim.id].path}"
                raise UserError.of("claims.id", expected, claim.id, "rename one", path=str(path))
            claims[claim.id] = claim
    if only is not None:
        if only not in claims:
            remedy = did_you_mean(only, claims, "choose one of them")
            expected = f"one of the {len(claims)} claims {', '.join(list(claims)[:60])}"
            raise UserError.of("claims.only", expected, f"{only!r:.60}", remedy)
        claims = {only: claims[only]}
    archive = Archive(roots)
    return [_checked(claim, archive) for claim in claims.values()]


def _checked(claim: Claim, archive: Archive) -> CheckedClaim:
    try:
        return judge_claim(claim, _evidence(claim, archive))
    except UserError as error:
        if error.finding is None:
            raise
        place = f"{claim.path}: claim {claim.id}"
        raise UserError(dataclasses.replace(error.finding, path=place), error.exit_code) from error


def _evidence(claim: Claim, archive: Archive) -> Evidence:
    check, stated = claim.check, claim.stated
    if isinstance(check, NoCheck):
        return Evidence((), lacks=f"not published: {check.missing}")
    if isinstance(check, ProjectCheck):
        return project_grid(check)
    if isinstance(check, ExpressionCheck):
        return evaluate(check)
    return Evidence(()) if stated is None else evidence_of_logs(check, stated, archive)
