"""Rules for the files of a submission: kinds, names, sizes, archives and SHA256SUMS."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from hybridperf.findings import Severity
from hybridperf.log.chain import SUMS, parse_sums
from hybridperf.log.package import NAME, result_names
from hybridperf.log.submission import DEPTH_CAP, ITEMS_CAP
from hybridperf.rules.rule import Deviation, rule
from hybridperf.untrusted import (
    DOCUMENT_CAP_BYTES,
    LOG_CAP_BYTES,
    archive_kind,
    open_bounded,
    read_bounded,
    reason,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hybridperf.log.package import Package
    from hybridperf.log.submission import Submission

__all__ = ["ARCHIVE", "LEFT_BEHIND"]

_LAYOUT: Final = "MLPerf submission rules, 'Directory structure', Training"
_CHECKER: Final = "MLPerf's repository checker"
_RESERVED: Final = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)
#: residual files of editors and desktops
LEFT_BEHIND: Final = re.compile(r".*~|#.*#|.*\.(?:bak|orig|rej|swp|tmp)|\.DS_Store|Thumbs\.db")
#: file names of archives
ARCHIVE: Final = re.compile(r".*\.(?:zip|tar|tgz|gz|bz2|xz|zst|7z|rar|lz4)", re.IGNORECASE)
_HEAD_BYTES: Final = 512
_ANY_SIZE: Final = 2**62


@rule(
    "package.kind",
    scope="submission",
    source=f"{_LAYOUT}: a submission is a directory of files; {_CHECKER}: no broken links",
    remedy="replace it by the file",
)
def only_files_and_folders(submission: Submission) -> Iterator[Deviation]:
    """Every entry is a regular file or a folder, not a link or device."""
    for item in submission.items:
        if item.kind in {"link", "special"}:
            found = "a symbolic link" if item.kind == "link" else "a pipe, device or socket"
            code = item.kind == "link" and item.parts[0] == "benchmarks"
            yield Deviation(
                "a regular file or a folder",
                found,
                path=submission.place(*item.parts),
                severity=Severity.WARNING if code else None,
            )


@rule(
    "package.names",
    scope="submission",
    source=f"{_CHECKER}: no names with spaces or a leading dot; HybridPerf rules, section 6",
    remedy="rename it",
)
def plain_names(submission: Submission, *, folders: bool) -> Iterator[Deviation]:
    """Names can be stored on every file system and contain no hidden characters."""
    for item in submission.items:
        if not folders and item.kind == "folder" and len(item.parts) in {2, 3}:
            continue  # checked while reading
        code = item.parts[0] == "benchmarks"
        name, found = item.name, ""
        severity = Severity.WARNING if code else Severity.ERROR
        if name.startswith(".") and not LEFT_BEHIND.fullmatch(name):
            found = "a hidden name"
        elif any(char.isspace() or unicodedata.category(char)[0] == "C" for char in name):
            found = "a name with spaces, control or invisible characters"
        elif _RESERVED.fullmatch(name) or name.endswith("."):
            found, severity = "a name that not every system can store", Severity.WARNING
        elif not code and not NAME.fullmatch(name) and not LEFT_BEHIND.fullmatch(name):
            found, severity = f"{name!r:.80}", Severity.WARNING
        if found:
            yield Deviation(
                "a name of 1 to 64 letters, digits, '.', '_' and '-', a letter or digit first",
                found,
                path=submission.place(*item.parts),
                severity=severity,
            )


@rule(
    "package.case",
    scope="submission",
    source="HybridPerf rules, section 6: no two names differ by case alone",
    remedy="rename one of them",
)
def no_case_clashes(submission: Submission) -> Iterator[Deviation]:
    """No two names in a folder differ by case only."""
    siblings: dict[tuple[tuple[str, ...], str], list[str]] = defaultdict(list)
    for item in submission.items:
        folded = unicodedata.normalize("NFC", item.name).casefold()
        siblings[item.parts[:-1], folded].append(item.name)
    for (above, _), names in siblings.items():
        if len(names) > 1:
            yield Deviation(
                "names that differ by more than case",
                " and ".join(repr(name)[:80] for name in names[:2]),
                path=submission.place(*above),
            )


@rule(
    "package.size",
    scope="submission",
    source=f"{_CHECKER}: no files above 50 MB; HybridPerf rules, section 6",
    remedy="remove files that no reader of the result needs",
)
def small_enough(submission: Submission, *, most_bytes: int) -> Iterator[Deviation]:
    """No file is too large, and the folder has not too many files."""
    for item in submission.items:
        if item.kind == "file" and item.size_bytes > most_bytes:
            yield Deviation(
                f"files of at most {most_bytes / 1e6:g} MB",
                f"{item.size_bytes / 1e6:.0f} MB",
                path=submission.place(*item.parts),
            )
    if submission.tree.cut:
        expected = f"at most {ITEMS_CAP} files, {DEPTH_CAP} folders deep"
        yield Deviation(expected, submission.tree.cut, path=submission.place())


@rule(
    "package.archive",
    scope="submission",
    source=f"{_LAYOUT}: result_<i>.txt is a log file",
    remedy="unpack it: archives are never opened",
)
def no_archives(submission: Submission) -> Iterator[Deviation]:
    """No result or description is an archive, whatever its name."""
    for item in submission.items:
        if item.kind != "file" or item.parts[0] == "benchmarks":
            continue
        found = _archive(submission.folder.joinpath(*item.parts))
        if not found and ARCHIVE.fullmatch(item.name):
            found = "the name of an archive"
        if found:
            yield Deviation("text", found, path=submission.place(*item.parts))


def _archive(path: Path) -> str:
    """Return the kind of archive by the first bytes of a file; "" if it is none."""
    try:
        with open_bounded(path, _ANY_SIZE) as file:
            return archive_kind(file.read(_HEAD_BYTES))
    except (OSError, ValueError):
        return ""  # deleted meanwhile, or not readable


@rule(
    "package.sums",
    scope="submission",
    source="HybridPerf rules, section 6: SHA256SUMS names every file of a result",
    remedy="restore the files as they were sealed; a missing list is made by 'sha256sum result_*'",
)
def sums_hold(submission: Submission) -> Iterator[Deviation]:
    """SHA256SUMS lists every log and manifest, and each has the listed hash."""
    for package in submission.packages:
        place = submission.place("results", package.system, package.benchmark, SUMS)
        try:
            text = read_bounded(package.folder / SUMS, DOCUMENT_CAP_BYTES).decode()
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
    # A harness killed while sealing an attempt seals it on the next start.
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
            content = read_bounded(package.folder / name, LOG_CAP_BYTES)
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
