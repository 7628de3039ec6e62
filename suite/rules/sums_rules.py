"""The rule of SHA256SUMS: what was sealed is what stands there, for anybody with sha256sum."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from suite.findings import Severity
from suite.logs.package import NAME, result_names
from suite.logs.strict_json import read_bounded, reason
from suite.logs.sums import SUMS, parse_sums
from suite.rules.rule import Deviation, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from suite.logs.package import Package
    from suite.logs.submission import Submission

_FILE_CAP_BYTES: Final = 64 * 2**20
_SUMS_CAP_BYTES: Final = 2**20


@rule(
    "package.sums",
    scope="submission",
    source="HybridPerf rules, section 6: SHA256SUMS names every file of a result",
    remedy="put back what was sealed; where there is no list, make it with 'sha256sum result_*'",
)
def sums_hold(submission: Submission) -> Iterator[Deviation]:
    """SHA256SUMS names every log and manifest, and each has the hash that stands there."""
    for package in submission.packages:
        place = submission.place("results", package.system, package.benchmark, SUMS)
        try:
            text = read_bounded(package.folder / SUMS, _SUMS_CAP_BYTES).decode()
            sums = parse_sums(text)
        except FileNotFoundError:
            yield Deviation("a list of hashes", "none", path=place, severity=Severity.WARNING)
        except (OSError, ValueError) as error:
            yield Deviation("a SHA-256 and a name on every line", reason(error), path=place)
        else:
            yield from _unlike(submission, package, sums, place)


def _unlike(
    submission: Submission, package: Package, sums: dict[str, str], place: str
) -> Iterator[Deviation]:
    # What the harness was sealing when it was killed, it seals when it goes on.
    pending = {
        name
        for item in submission.unsealed
        if item.parts[1:3] == (package.system, package.benchmark)
        for name in result_names(int(item.name.rpartition("_")[2]))
    }
    for name, digest in sums.items():
        if not NAME.fullmatch(name):
            yield Deviation("names of files beside it", f"{name!r:.80}", path=place)
            continue
        if name in pending:
            continue
        try:
            content = read_bounded(package.folder / name, _FILE_CAP_BYTES)
        except (OSError, ValueError) as error:
            yield Deviation(f"{name}, as it is listed", reason(error), path=place)
            continue
        if (found := hashlib.sha256(content).hexdigest()) != digest:
            expected = f"{name} with SHA-256 {digest[:12]}..."
            yield Deviation(expected, f"{found[:12]}...", path=place)
    for item in submission.tree.files("results", package.system, package.benchmark):
        listed = item.name in sums or item.name in pending
        if len(item.parts) == 4 and item.name.startswith("result_") and not listed:
            yield Deviation(f"{item.name[:80]} in the list", "none", path=place)
