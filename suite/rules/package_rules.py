"""Rules of what stands in a submission's folder: kinds, names, sizes and archives."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from suite.findings import Severity
from suite.logs.archives import archive_kind
from suite.logs.package import NAME
from suite.logs.strict_json import open_bounded
from suite.logs.tree import DEPTH_CAP, ITEMS_CAP
from suite.rules.rule import Deviation, rule

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from suite.logs.submission import Submission

__all__ = ["ARCHIVE", "LEFT_BEHIND"]

_LAYOUT: Final = "MLPerf submission rules, 'Directory structure', Training"
_CHECKER: Final = "MLPerf's repository checker"
_RESERVED: Final = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)
#: what editors and desktops leave behind
LEFT_BEHIND: Final = re.compile(r".*~|#.*#|.*\.(?:bak|orig|rej|swp|tmp)|\.DS_Store|Thumbs\.db")
#: how archives are called
ARCHIVE: Final = re.compile(r".*\.(?:zip|tar|tgz|gz|bz2|xz|zst|7z|rar|lz4)", re.IGNORECASE)
_HEAD_BYTES: Final = 512
_ANY_SIZE: Final = 2**62


@rule(
    "package.kind",
    scope="submission",
    source=f"{_LAYOUT}: a submission is a directory of files; {_CHECKER}: no broken links",
    remedy="put the file itself there",
)
def only_files_and_folders(submission: Submission) -> Iterator[Deviation]:
    """Everything is a regular file or a folder, and no link leads anywhere else."""
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
    """Names can be written on every system, and be read as what they are."""
    for item in submission.items:
        if not folders and item.kind == "folder" and len(item.parts) in {2, 3}:
            continue  # judged while reading
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
    """No two names in a folder are one and the same where case does not count."""
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
    remedy="leave out what no reader of the result needs",
)
def small_enough(submission: Submission, *, most_bytes: int) -> Iterator[Deviation]:
    """No file is too large, and there are not too many."""
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
            found = "a name as archives have"
        if found:
            yield Deviation("text", found, path=submission.place(*item.parts))


def _archive(path: Path) -> str:
    """Return which kind of archive a file is by its first bytes, or ""."""
    try:
        with open_bounded(path, _ANY_SIZE) as file:
            return archive_kind(file.read(_HEAD_BYTES))
    except (OSError, ValueError):
        return ""  # it went away, or may not be read
