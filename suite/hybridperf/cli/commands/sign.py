"""``hybridperf sign``: sign a sealed result with an SSH key."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.cli.printing import print_line
from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Severity
from hybridperf.log.chain import SUMS
from hybridperf.log.package import find_results, only_result, read_result
from hybridperf.rules.check import check_result
from hybridperf.rules.evidence import RESULT, SIGNERS, has_key, sign_file
from hybridperf.rules.verdict import word_of
from hybridperf.run.folder import locked, require_unchanged
from hybridperf.score.validity import Judgement

if TYPE_CHECKING:
    import argparse

__all__ = ["EXAMPLES", "add_arguments", "execute"]

EXAMPLES: Final = """\
hybridperf sign runs/acme/results/laptop/resnet-laptop --key ~/.ssh/id_ed25519"""

_SIGNATURE: Final = "result.signature"  #: the rule that signing satisfies


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``hybridperf sign``."""
    parser.add_argument("path", type=Path, help="folder of one result")
    parser.add_argument(
        "--key",
        type=Path,
        required=True,
        help="private SSH key, or the public one of a key in an agent or on a token",
    )


def execute(options: argparse.Namespace) -> ExitCode:
    """Sign SHA256SUMS, if the result keeps the rules and its files are as they were sealed."""
    package = only_result(find_results(options.path), options.path, "sign.path")
    for finding in check_result(read_result(package)):
        word = word_of(finding)
        if word in {Severity.ERROR, Judgement.PROVISIONAL} and finding.rule != _SIGNATURE:
            raise UserError(finding, ExitCode.INVALID)
    with locked(package):
        require_unchanged(package)
        signature = sign_file(package.folder / SUMS, options.key, RESULT)
    print_line(str(signature))
    if not has_key(package.root / SIGNERS, package.org):
        signers = package.root / SIGNERS
        print_line(f"{package.org} has no key in {signers}: the signature cannot be verified yet.")
    return ExitCode.OK
