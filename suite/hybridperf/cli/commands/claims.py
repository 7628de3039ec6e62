"""``hybridperf claims``: check published claims, from logs, by projection or by arithmetic."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.claims.check import check_claims
from hybridperf.claims.verdict import ClaimVerdict, found_words, interval_words, over_strongest
from hybridperf.cli.options import add_format, add_roots
from hybridperf.cli.printing import print_json, print_line, terminal_width
from hybridperf.errors import ExitCode
from hybridperf.findings import visible
from hybridperf.report.terminal import table_text, wrapped

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from hybridperf.claims.claim import Claim
    from hybridperf.claims.verdict import CheckedClaim, ClaimReading

__all__ = ["EXAMPLES", "add_arguments", "execute"]

EXAMPLES: Final = """\
hybridperf claims claims.toml
hybridperf claims claims/*.toml --root rounds --root .
hybridperf claims claims/baidu.toml --root rounds --only B08 --json"""
_HEADS: Final = ("claim", "stated", "found", "95 % interval", "verdict")
_MOST_NOTES: Final = 12  #: of a claim that the text shows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``hybridperf claims``."""
    parser.add_argument(
        "files", type=Path, nargs="+", metavar="FILE", help="files of claims, in TOML"
    )
    add_roots(parser)
    parser.add_argument("--only", metavar="ID", help="check one claim")
    add_format(parser, "text", "json")


def execute(options: argparse.Namespace) -> ExitCode:
    """Print the verdict on each claim; exit status 3 if one is contradicted."""
    roots = options.roots or [Path()]
    checked = check_claims(options.files, roots, options.only)
    if options.format == "json":
        print_json(_json(checked, options.roots or []))
    else:
        _print(checked, options.roots or [])
    contradicted = any(each.verdict is ClaimVerdict.CONTRADICTED for each in checked)
    return ExitCode.INVALID if contradicted else ExitCode.OK


def _command(claim: Claim, roots: Sequence[Path]) -> str:
    """Return the command that checks ``claim`` alone."""
    words = ["hybridperf", "claims", claim.path, "--only", claim.id]
    for root in roots:
        words += ["--root", str(root)]
    return shlex.join(words)


def _print(checked: Sequence[CheckedClaim], roots: Sequence[Path]) -> None:
    width = terminal_width()
    rows = [
        (
            each.claim.id,
            visible(each.claim.value) or "-",
            visible(found_words(each)) or "-",
            visible(_interval(each)) or "-",
            visible(each.words),
        )
        for each in checked
    ]
    print_line(table_text(_HEADS, rows, width))
    for each in checked:
        print_line()
        for line in _lines(each, roots):
            for part in wrapped(visible(line), width):
                print_line(part)
    counts = {verdict: sum(each.verdict is verdict for each in checked) for verdict in ClaimVerdict}
    words = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    words = words.replace(ClaimVerdict.HOLDS_WHERE, "hold for a part")
    print_line(f"\n{len(checked)} claim{'s' * (len(checked) != 1)}: {words}")


def _interval(each: CheckedClaim) -> str:
    readings = each.evidence.readings
    if len(readings) == 1:
        return interval_words(readings[0], each.claim.stated)
    return f"{len(readings)} readings" if readings else ""


def _lines(each: CheckedClaim, roots: Sequence[Path]) -> Iterator[str]:
    claim, evidence = each.claim, each.evidence
    yield f"{claim.id}: {claim.statement}"
    yield f"{each.words[:1].upper()}{each.words[1:]}. {each.sentence}"
    if claim.note:
        yield claim.note
    for base, found in over_strongest(each).items():
        yield f"over {base}, the strongest base at hand: {found}"
    for note in evidence.notes[:_MOST_NOTES]:
        yield f"note: {note}"
    if (more := len(evidence.notes) - _MOST_NOTES) > 0:
        yield f"{more} more notes in --json"
    yield f"$ {_command(claim, roots)}"


def _json(checked: Sequence[CheckedClaim], roots: Sequence[Path]) -> dict[str, object]:
    return {
        "version": 1,
        "claims": [
            {
                "id": each.claim.id,
                "statement": each.claim.statement,
                "source": each.claim.source.title,
                "url": each.claim.source.url,
                "where": each.claim.where,
                "note": each.claim.note,
                "stated": each.claim.value,
                "verdict": str(each.verdict),
                "part": each.part,
                "sentence": each.sentence,
                "readings": [_reading(one) for one in each.evidence.readings],
                "strongest": [_reading(one) for one in each.evidence.strongest],
                "notes": list(each.evidence.notes),
                "command": _command(each.claim, roots),
            }
            for each in checked
        ],
    }


def _reading(reading: ClaimReading) -> dict[str, object]:
    return {
        "value": reading.value,
        "low": _finite(reading.low),
        "high": _finite(reading.high),
        "conditions": dict(reading.conditions),
        "distinguishable": reading.distinguishable,
        "command": reading.command,
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and abs(value) < float("inf") else None
