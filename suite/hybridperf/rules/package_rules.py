"""Rules for a submission: its files, their layout, and the descriptions of its systems."""

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
from hybridperf.rules.rule import Deviation, first_of, rule
from hybridperf.system.catalog import accelerators_per_node, node_count
from hybridperf.untrusted import (
    DOCUMENT_CAP_BYTES,
    LOG_CAP_BYTES,
    archive_kind,
    open_bounded,
    parse_count,
    read_bounded,
    reason,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from hybridperf.log.package import Package
    from hybridperf.log.submission import Item, Submission

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
_CONTENT: Final = "MLPerf submission rules, 'Submission content'"
_LOG: Final = re.compile(r"result_.*\.txt")
_NUMBERED: Final = re.compile(r"result_(0|[1-9][0-9]{0,5})\.txt")
_SCRIPTS: Final = ("README.md", "setup.sh", "init_datasets.sh", "run_and_time.sh")
_FIELDS: Final = "MLPerf submission rules, '<system_desc_id>.json metadata'"
_CATEGORIES: Final = "MLPerf submission rules, 'Results categories'"
# N/A is not in the set, since examples in the rules use it.
_EMPTY: Final = frozenset({"", "-", "?", ".", "null", "tbd", "todo", "unknown"})
_NO_ACCELERATOR: Final = _EMPTY | {"n/a", "na", "none", "no", "0"}
_MOST_NAMED: Final = 4
_OF_ACCELERATORS: Final = "accelerator_"
# Node and accelerator counts in folder names: dgxa100_n8, 8-nodes-SPR, _8N_, 8xA100.
_STATED: Final = re.compile(
    r"(?:^|[_-])n(?P<n>[0-9]{1,5})(?=[_-]|$)|(?:^|[_-])(?P<nodes>[0-9]{1,5})[_-]?nodes?(?=[_-]|$)"
    r"|(?:^|[_-])(?P<N>[0-9]{1,5})N(?=[_-]|$)|(?:^|[_-])(?P<times>[0-9]{1,5})x(?=[A-Za-z])"
)


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


@rule(
    "package.stray",
    scope="submission",
    source=f"{_LAYOUT}: the structure must be followed",
    remedy="remove it, or use the name and place that the layout defines",
    severity=Severity.WARNING,
)
def nothing_stray(
    submission: Submission, *, top: Sequence[str], in_result: Sequence[str]
) -> Iterator[Deviation]:
    """Every file has a place in the layout."""
    known = [re.compile(pattern) for pattern in in_result]
    for item in submission.items:
        is_code = item.parts[0] == "benchmarks" and "benchmarks" in top
        judged = item.kind in {"file", "folder"} and not is_code
        words = _stray(item, top, known) if judged else None
        if words is not None:
            # Logs with other names are not read.
            of_result = item.parts[0] == "results" and len(item.parts) == 4
            unread = of_result and item.name.lower().startswith("result")
            severity = Severity.ERROR if unread and not LEFT_BEHIND.fullmatch(item.name) else None
            yield Deviation(*words, path=submission.place(*item.parts), severity=severity)
    for item in submission.unsealed:
        expected, found = "finished attempts", "one that was started and not finished"
        yield Deviation(expected, found, path=submission.place(*item.parts))


@rule(
    "package.logs",
    scope="submission",
    source=f"{_LAYOUT}: results/<system>/<benchmark>/result_<i>.txt",
    remedy="put the logs there, or remove the folder",
    severity=Severity.WARNING,
)
def folders_hold_logs(submission: Submission) -> Iterator[Deviation]:
    """Every result's folder holds logs."""
    logs = {item.parts[:3] for item in submission.items if _LOG.fullmatch(item.name)}
    begun = {item.parts[:3] for item in submission.unsealed}
    for item in submission.items:
        is_result = item.kind == "folder" and item.parts[0] == "results" and len(item.parts) == 3
        if is_result and item.parts not in logs | begun:
            yield Deviation("result_<n>.txt in it", "none", path=submission.place(*item.parts))


@rule(
    "package.numbers",
    scope="submission",
    source=f"{_LAYOUT}: result_<i>.txt",
    remedy="number the logs without a gap, and include every run",
    severity=Severity.WARNING,
)
def logs_numbered(submission: Submission) -> Iterator[Deviation]:
    """Logs are numbered from 0 or 1 without a gap, where they are numbered."""
    numbers: dict[tuple[str, ...], set[int]] = defaultdict(set)
    for item in submission.items:
        if item.parts[0] == "results" and (match := _NUMBERED.fullmatch(item.name)):
            numbers[item.parts[:-1]].add(int(match[1]))
    for folder, present in numbers.items():
        missing = next(number for number in range(1, max(present) + 2) if number not in present)
        if missing < max(present):
            expected = f"result_{missing}.txt, as there is result_{max(present)}.txt"
            yield Deviation(expected, "none", path=submission.place(*folder))


@rule(
    "package.described",
    scope="submission",
    source=f"{_CONTENT}: metadata for the systems under test",
    remedy="describe the system, or rename the description to match the results' folder",
)
def results_described(submission: Submission) -> Iterator[Deviation]:
    """Every system with results has a description."""
    for system in sorted({each.system for each in submission.packages}):
        if not submission.tree.has("systems", f"{system}.json"):
            place = submission.place("results", system)
            yield Deviation(f"{system}.json in systems/", "none", path=place)


@rule(
    "package.unused",
    scope="submission",
    source=f"{_CONTENT}: result logs for each system-implementation tested",
    remedy="add its results, or remove the description",
    severity=Severity.WARNING,
)
def descriptions_used(submission: Submission) -> Iterator[Deviation]:
    """Every system that is described has results."""
    described = [
        item.name.removesuffix(".json")
        for item in submission.tree.files("systems")
        if item.name.endswith(".json")
    ]
    with_results = {item.parts[1] for item in submission.tree.files("results") if item.parts[2:]}
    if unused := [name for name in described if name not in with_results]:
        yield Deviation(
            "results of every system in systems/",
            f"none of {first_of(unused)}",
            path=submission.place("systems"),
        )


@rule(
    "package.code",
    scope="submission",
    source=f"{_CONTENT}: code that implements the benchmarks, and scripts that execute it",
    remedy="add the code and the scripts of this benchmark and system",
)
def code_present(submission: Submission) -> Iterator[Deviation]:
    """The code of every benchmark and the scripts of every system are present."""
    tree, place = submission.tree, submission.place("benchmarks")
    if not tree.files("benchmarks"):
        # Excerpts of a round lack the code, which does not invalidate their logs.
        expected = "benchmarks/ with the code of every result"
        yield Deviation(expected, "none", path=place, severity=Severity.WARNING)
        return
    for benchmark in sorted({each.benchmark for each in submission.packages}):
        if not tree.files("benchmarks", benchmark, "implementations"):
            expected = f"code in {benchmark}/implementations/"
            yield Deviation(expected, "none", path=place)
    lacking = []
    for each in submission.packages:
        files = {item.name for item in tree.files("benchmarks", each.benchmark, each.system)}
        described = any(name.startswith(f"{each.system}_") for name in files)
        if not described or not files.issuperset(_SCRIPTS):
            lacking.append(f"{each.benchmark}/{each.system}")
    if lacking:
        # Accepted submissions may keep scripts in the code folder instead.
        expected = f"<system>_<implementation>.json, {', '.join(_SCRIPTS)} for every system"
        found = f"not all in {first_of(lacking)}"
        yield Deviation(expected, found, path=place, severity=Severity.WARNING)


def _stray(
    item: Item, top: Sequence[str], in_result: Sequence[re.Pattern[str]]
) -> tuple[str, str] | None:
    """Return (expected, found) if ``item`` does not belong to the layout, else None."""
    area, name, depth = item.parts[0], item.name, len(item.parts)
    if LEFT_BEHIND.fullmatch(name):
        return "only what the layout names", "a file that an editor left behind"
    if name.startswith(".") or ARCHIVE.fullmatch(name):
        return None  # reported by other rules
    if depth == 1:
        return None if name in top else (f"{', '.join(top)} alone", f"{name!r:.80}")
    if area == "systems" and (depth > 2 or item.kind == "folder" or not name.endswith(".json")):
        return "<system>.json only in systems/", f"{name!r:.80}"
    if area == "results" and item.kind == "file" and depth < 4:
        return "folders <system>/<benchmark>/ in results/", "a file"
    if area == "results" and depth == 4:
        if any(pattern.fullmatch(name) for pattern in in_result):
            return None
        return "result_<n>.txt, n without leading zeros, in a result's folder", f"{name!r:.80}"
    return None


@rule(
    "system.fields",
    scope="submission",
    source=f"{_FIELDS}: the file should contain the following metadata",
    remedy="add the fields; those that need no answer may be empty text",
)
def fields_present(
    submission: Submission, *, fields: Sequence[str], texts: Sequence[str]
) -> Iterator[Deviation]:
    """Every field is present, and is text or a number."""
    for name, system in submission.systems.items():
        place = submission.place("systems", f"{name}.json")
        if missing := [field for field in fields if field not in system]:
            yield Deviation(
                f"all {len(fields)} fields", f"none of {first_of(missing, _MOST_NAMED)}", path=place
            )
        for field in fields:
            value = system.get(field, "")
            listed = field not in texts and isinstance(value, dict | list)
            if isinstance(value, bool) or not (listed or isinstance(value, str | int | float)):
                yield Deviation(f"{field} as text", f"{value!r:.80}", path=place)


@rule(
    "system.meaning",
    scope="submission",
    source=f"{_FIELDS}: 'meaningful response required'",
    remedy="state what the system has, or that it has none",
    severity=Severity.WARNING,
)
def fields_mean_something(
    submission: Submission, *, meaningful: Sequence[str], cores: Sequence[str]
) -> Iterator[Deviation]:
    """Fields that require a meaningful response have one; one of ``cores`` is enough."""
    for name, system in submission.systems.items():
        host_only = accelerators_per_node(system) == 0
        empty = [
            field
            for field in meaningful
            if field in system
            and _is_empty(system[field])
            and not (host_only and field.startswith(_OF_ACCELERATORS))
        ]
        preview = str(system.get("status")).casefold() == "preview"
        if not preview and cores and all(_is_empty(system.get(field)) for field in cores):
            empty.append(" or ".join(cores))
        if empty:
            place = submission.place("systems", f"{name}.json")
            yield Deviation(
                f"meaningful responses in {len(meaningful) + bool(cores)} fields",
                f"none in {first_of(empty, _MOST_NAMED)}",
                path=place,
            )


@rule(
    "system.numbers",
    scope="submission",
    source=f"{_FIELDS}: numbers of nodes, processors and accelerators",
    remedy="write a whole number, as a number or as text",
)
def numbers_are_numbers(
    submission: Submission, *, at_least: Mapping[str, int], if_any: Sequence[str]
) -> Iterator[Deviation]:
    """Counts are whole numbers; those in ``if_any`` may be empty."""
    for name, system in submission.systems.items():
        place = submission.place("systems", f"{name}.json")
        for field, least in at_least.items():
            if field in system and parse_count(system[field], least) is None:
                expected = f"{field} to be a whole number, at least {least}"
                yield Deviation(expected, f"{system[field]!r:.80}", path=place)
        for field in if_any:
            value = system.get(field)
            if not _is_empty(value) and parse_count(value) is None:
                expected = f"{field} to be a whole number or empty"
                yield Deviation(expected, f"{value!r:.80}", path=place, severity=Severity.WARNING)


@rule(
    "system.words",
    scope="submission",
    source=f"{_CATEGORIES}; two tables of results, one for Closed and one for Open",
    remedy="write one of these words",
)
def known_words(
    submission: Submission, *, words: Mapping[str, Sequence[str]]
) -> Iterator[Deviation]:
    """Fields with a vocabulary contain one of its words, in any case."""
    for name, system in submission.systems.items():
        for field, known in words.items():
            if field in system and str(system[field]).strip().casefold() not in known:
                yield Deviation(
                    f"{field} to be one of {', '.join(known)}",
                    f"{system[field]!r:.80}",
                    path=submission.place("systems", f"{name}.json"),
                )


@rule(
    "system.submitter",
    scope="submission",
    source=f"{_FIELDS}: submitter; 'Directory structure': <submitting_organization>/",
    remedy="name the organisation as its folder is called",
    severity=Severity.WARNING,
)
def submitter_is_the_folder(submission: Submission) -> Iterator[Deviation]:
    """The submitter is the organisation of the folder."""
    for name, system in submission.systems.items():
        submitter = system.get("submitter")
        if submitter is not None and str(submitter).casefold() != submission.org.casefold():
            yield Deviation(
                f"submitter {submission.org}, as the folder is called",
                f"{submitter!r:.80}",
                path=submission.place("systems", f"{name}.json"),
            )


@rule(
    "system.counts",
    scope="submission",
    source="HybridPerf rules, section 6: a system's name and its description state the same counts",
    remedy="correct the description, or rename the system",
    severity=Severity.WARNING,
)
def counts_agree(submission: Submission) -> Iterator[Deviation]:
    """Numbers in the system's name agree with its description, and accelerators have a name."""
    for name, system in submission.systems.items():
        place = submission.place("systems", f"{name}.json")
        nodes, each = node_count(system), accelerators_per_node(system)
        if not nodes or each is None:
            continue
        for match in _STATED.finditer(name):
            stated, kind = int(match[match.lastgroup or 0]), match.lastgroup
            allowed = {nodes, each, nodes * each} if kind == "times" else {nodes}
            if stated not in allowed:
                expected = f"{nodes} nodes of {each} accelerators, as the fields say, in the name"
                yield Deviation(expected, match[0].strip("_-"), path=place)
        model = str(system.get("accelerator_model_name", "")).strip()
        named = model.casefold() not in _NO_ACCELERATOR
        if named != (each > 0):
            expected = "a name where there are accelerators, and none where there are none"
            found = f"{model!r:.60} on {each} accelerators a node"
            yield Deviation(expected, found, path=place)


def _is_empty(value: object) -> bool:
    if isinstance(value, str):
        return value.strip().casefold() in _EMPTY
    return value is None or value == {} or value == []
