"""``hybridperf submit``: pack the publishable results of an organisation for a leaderboard."""

from __future__ import annotations

import gzip
import io
import re
import shutil
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.cli.printing import print_line
from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import visible
from hybridperf.log.chain import SUMS
from hybridperf.log.package import NAME, find_results, read_result
from hybridperf.log.submission import submissions_of
from hybridperf.rules.check import check_path
from hybridperf.run.files import write_atomically
from hybridperf.run.folder import environment_refusal
from hybridperf.system.privacy import Guard
from hybridperf.untrusted import DOCUMENT_CAP_BYTES, parse_object, read_bounded, reason

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from hybridperf.log.package import Package
    from hybridperf.rules.verdict import ResultVerdict

__all__ = ["EXAMPLES", "add_arguments", "execute"]

EXAMPLES: Final = """\
hybridperf submit runs --org acme
hybridperf submit runs --org acme --out acme.tar.gz"""

_ARCHIVE: Final = ".tar.gz"
_SHA256: Final = re.compile(r"[0-9a-f]{64}")  # which the guard takes for an identifier


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``hybridperf submit``."""
    parser.add_argument("path", type=Path, metavar="FOLDER", help="folder with results")
    parser.add_argument(
        "--org", required=True, help="organisation that submits, as --org of its runs"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("submission"),
        help=f"new folder, or file {_ARCHIVE}, of the submission (default: submission)",
    )


def execute(options: argparse.Namespace) -> ExitCode:
    """Pack what passes, and print what is left out and why; exit status 3 if nothing passes."""
    path, org, out = options.path, options.org, options.out
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        remedy = "choose another with --out, or remove it"
        raise UserError.of(
            "submit.out", "a new folder or file", "one that is there", remedy, path=str(out)
        )
    if not NAME.fullmatch(org):
        expected = "a name of 1 to 64 letters, digits, '.', '_' and '-', a letter or digit first"
        raise UserError.of("submit.org", expected, repr(org)[:80], "choose another with --org")
    if not find_results(path):
        raise UserError.of(
            "submit.path",
            "results, in <org>/results/<system>/<benchmark>",
            "none",
            "make some with 'hybridperf run'",
            path=str(path),
            exit_code=ExitCode.ENVIRONMENT,
        )
    guard = Guard(Guard.of_this_machine().secrets - {org.lower()})
    packages = []
    for result in check_path(path).results:
        if why := _why_not(result, org, guard):
            sys.stderr.write(f"hybridperf: left out: {result.package.name}: {visible(why)}\n")
        else:
            packages.append(result.package)
    if not packages:
        raise UserError.of(
            "submit.results",
            f"a result of {org} that may be published",
            "none",
            f"'hybridperf check {path} --publish' says what is missing",
            path=str(path),
            exit_code=ExitCode.INVALID,
        )
    try:
        _pack(packages, out)
    except OSError as error:
        raise environment_refusal(error, out) from error
    count = f"{len(packages)} result{'s' if len(packages) != 1 else ''}"
    print_line(f"{count} of {org} in {out}")
    unsigned = sum(not (each.folder / f"{SUMS}.sig").is_file() for each in packages)
    if unsigned:
        print_line(f"{unsigned} of them not signed: 'hybridperf sign RESULT --key KEY' signs one.")
    return ExitCode.OK


def _why_not(result: ResultVerdict, org: str, guard: Guard) -> str:
    """Return why ``result`` is left out; "" if it may be published."""
    package = result.package
    if package.org != org:
        return f"a result of {package.org}, as its logs say; make its runs with --org {org}"
    if not result.publishable or result.withdrawn:
        return f"{result.judgement}: {result.why}"
    return next(_private(package, guard), "")


def _files(packages: Sequence[Package]) -> Iterator[tuple[str, Path]]:
    """Yield name in the submission and path of every file of results and their systems."""
    for submission in submissions_of(packages):
        systems = {("systems", f"{each.system}.json") for each in packages}
        results = {("results", each.system, each.benchmark) for each in packages}
        for item in submission.items:
            if item.kind == "file" and (item.parts in systems or item.parts[:-1] in results):
                yield (
                    "/".join((submission.org, *item.parts)),
                    submission.folder.joinpath(*item.parts),
                )


def _private(package: Package, guard: Guard) -> Iterator[str]:
    """Yield the places of texts in a result that `Guard` refuses to publish, not the texts."""
    values = [
        (run.log.path, entry.key, entry.value)
        for run in read_result(package).runs
        for entry in run.log.entries
    ]
    for _, path in _files([package]):
        if path.suffix not in {".json", ".toml"}:
            continue
        try:
            content = read_bounded(path, DOCUMENT_CAP_BYTES).decode()
            document = parse_object(content) if path.suffix == ".json" else tomllib.loads(content)
        except (OSError, ValueError) as error:
            yield f"{package.name_of(path)} cannot be read: {reason(error)}"
            return
        values += [(package.name_of(path), key, value) for key, value in document.items()]
    for place, key, value in values:
        if any(not guard.publishable(text) for text in _texts(value)):
            yield (
                f"{key} in {place} may name this machine or its user, or hold a secret; make the "
                "runs again without it"
            )


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        if value and not _SHA256.fullmatch(value):
            yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def _pack(packages: Sequence[Package], out: Path) -> None:
    """Write the submission to ``out``, if what is written passes ``check --publish``.

    Raises:
        OSError: if ``out`` cannot be written.
        UserError: exit status 3 if it does not pass: a file between the results breaks a rule.
    """
    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.absolute().parent, prefix=".submission_") as name:
        folder = Path(name) / "submission"
        for relative, path in _files(packages):
            target = folder / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target, follow_symlinks=False)
        verdict = check_path(folder)
        if verdict.status(publish=True) is not ExitCode.OK:
            raise UserError(verdict.errors_elsewhere[0], ExitCode.INVALID)
        if out.name.endswith(_ARCHIVE):
            write_atomically(out, _archive(folder))
        else:
            if out.is_dir():
                out.rmdir()
            folder.rename(out)


def _archive(folder: Path) -> bytes:
    """Return the tar archive of ``folder``, compressed: equal bytes for equal files."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(each for each in folder.rglob("*") if each.is_file()):
            entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
            entry.size = path.stat().st_size
            with path.open("rb") as file:
                archive.addfile(entry, file)
    return gzip.compress(content.getvalue(), mtime=0)
