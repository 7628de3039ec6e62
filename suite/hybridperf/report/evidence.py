"""Extract attempts, hashes, timelines and commands of a result from its logs and manifests.

Both are untrusted: a fact of another type than its function returns is treated as unknown.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

from hybridperf.log import keys
from hybridperf.log.package import result_names
from hybridperf.report.tables import run_outcome
from hybridperf.untrusted import number, whole

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hybridperf.log.log import Entry
    from hybridperf.log.package import Result, SealedRun
    from hybridperf.report.judgement import JudgedResult
    from hybridperf.score.run_score import RunScore

__all__ = [
    "AttemptRow",
    "EvidenceCounts",
    "ResultLinks",
    "TimedAction",
    "Timeline",
    "attempts_of",
    "evidence_of",
    "hashes_of",
    "links_of",
    "may_link",
    "read_timeline",
    "reproduce_commands",
    "reproduce_steps",
    "timelines_of",
]

# limits on untrusted logs
_LONGEST_GAP_S: Final = 1e9
_MOST_ACTIONS: Final = 2_000
_MOST_RANKS: Final = 64
_LONGEST_STEP_S: Final = 1e6
_KINDS: Final = ("forward", "backward", "backward of inputs", "backward of weights", "update")
_SHARED: Final = {
    "task": ("task", "sha256"),
    "data": ("data_sha256",),
    "harness": ("code", "suite_sha256"),
    "trainer": ("code", "trainer_sha256"),
    "commit": ("code", "commit"),
    "system description": ("system", "sha256"),
}
# Users copy this text from an untrusted manifest to a shell: no shell metacharacters.
_RUNS: Final = re.compile(r" --runs ([0-9]{1,9})(?![^ ])")
_HARMLESS: Final = re.compile(r"hybridperf run [a-z0-9][A-Za-z0-9 =,._/+-]{0,500}")
_COMMIT: Final = re.compile(r"([0-9a-f]{40,64})(-dirty)?")
_VERSION: Final = re.compile(r"[0-9][0-9a-z.+]{0,30}")


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """An attempt as the table of attempts shows it."""

    run: RunScore
    epochs: int | None
    quality: float | None  #: quality of the last evaluation
    rescored: float | None  #: quality of the final weights, measured by the harness
    outcome: str
    role: str  #: ``counts``, or why the attempt is not in the mean


def attempts_of(entry: JudgedResult) -> list[AttemptRow]:
    """Return every attempt, sorted by number."""
    reasons = {row["run"]: str(row["why"]) for row in entry.official.dropped}
    return [
        AttemptRow(
            run=run,
            epochs=run.curve[-1].epoch if run.curve else None,
            quality=run.curve[-1].quality if run.curve else None,
            rescored=_number_of(sealed, "rescoring", "quality"),
            outcome=run_outcome(run),
            role=_role(sealed, run, reasons.get(run.number, "")) + _interruptions(sealed, run),
        )
        for sealed, run in zip(entry.result.runs, entry.score.runs, strict=True)
    ]


def hashes_of(entry: JudgedResult) -> list[tuple[str, str]]:
    """Return (label, SHA-256) pairs: the distinct shared hashes, then one per log."""
    runs = entry.result.runs
    rows = [(name, text) for name, path in _SHARED.items() for text in _texts_of(runs, *path)]
    logs = ((result_names(run.number)[0], _text_of(run, "log", "sha256")) for run in runs)
    return rows + [(name, text) for name, text in logs if text is not None]


@dataclass(frozen=True, slots=True)
class EvidenceCounts:
    """Counts over the completed runs of a result."""

    completed: int
    chained: int  #: runs with a correct hash on every log line
    rescored: int  #: runs with final weights re-evaluated by the harness
    largest_difference: float | None  #: between trainer's and harness's quality


def evidence_of(entry: JudgedResult) -> EvidenceCounts:
    """Return the evidence in the logs and manifests of the completed runs."""
    numbers = {run.number for run in entry.score.completed}
    runs = [run for run in entry.result.runs if run.number in numbers]
    pairs = [
        (_number_of(run, "rescoring", "reported"), _number_of(run, "rescoring", "quality"))
        for run in runs
    ]
    differences = [abs(one - two) for one, two in pairs if one is not None and two is not None]
    return EvidenceCounts(
        completed=len(runs),
        chained=sum(run.log.chained for run in runs),
        rescored=len(differences),
        largest_difference=max(differences, default=None),
    )


def reproduce_commands(result: Result) -> list[str]:
    """Return the distinct commands in the manifests that are plain ``hybridperf run`` commands.

    Of commands that differ only in the number of runs, the command with the most runs is kept.
    """
    most: dict[str, tuple[int, str]] = {}
    for command in filter(_HARMLESS.fullmatch, _texts_of(result.runs, "command")):
        runs = int(found[1]) if (found := _RUNS.search(command)) else 0
        kind = _RUNS.sub("", command)
        most[kind] = max(most.get(kind, (0, "")), (runs, command))
    return [command for _, command in most.values()]


def reproduce_steps(result: Result) -> list[str]:
    """Return `reproduce_commands` after those that install the code, by its commit or version.

    The commit is of a clone of this suite. Without a harmless command there are no steps.
    """
    commands = reproduce_commands(result)
    commits = [
        f"git checkout {found[1]}{'  # and changes that no commit has' if found[2] else ''}"
        for text in _texts_of(result.runs, "code", "commit")
        if (found := _COMMIT.fullmatch(text))
    ]
    versions = filter(_VERSION.fullmatch, _texts_of(result.runs, "code", "version"))
    if commits:
        install = [*commits, "pip install -c constraints.txt -e '.[train]'"]
    else:
        install = [f"pip install 'hybridperf[train]=={version}'" for version in versions]
    return [*install, *commands] if commands else []


@dataclass(frozen=True, slots=True)
class ResultLinks:
    """Relative addresses of a result's files; "" for a file that there is not."""

    system: str
    logs: dict[int, str]  #: run number -> address
    manifests: dict[int, str]


def may_link(root: Path, out: Path) -> bool:
    """Tell whether a report in ``out`` links to files of ``root``.

    It does if one folder is in the other or both are in one folder, so that they can be moved and
    published together.
    """
    steps = Path(os.path.relpath(root, out)).parts
    report_in_root, root_in_report = set(steps) <= {".."}, ".." not in steps
    return report_in_root or root_in_report or (len(steps) == 2 and steps[1] != "..")


def links_of(result: Result, out: Path | None) -> ResultLinks:
    """Return the addresses of a result's files, from a page in the folder ``out``.

    Without ``out`` all are "".
    """
    package = result.package

    def link(path: Path, there: object) -> str:
        if out is None or there is None:
            return ""
        # Untrusted names: quoted, and not taken for a scheme since a path begins with a dot.
        relative = Path(os.path.relpath(path, out))
        return f"{'' if relative.parts[0] == '..' else './'}{quote(os.fsencode(relative))}"

    names = {run.number: result_names(run.number) for run in result.runs}
    return ResultLinks(
        system=link(package.system_file, result.system),
        logs={run: link(package.folder / log, log) for run, (log, _) in names.items()},
        manifests={
            run.number: link(package.folder / names[run.number][1], run.manifest)
            for run in result.runs
        },
    )


class TimedAction(NamedTuple):
    """One action of a rank in a timeline, with its times since the step began."""

    kind: str
    step: int
    stage: int
    microbatch: int
    start_s: float
    stop_s: float


Timeline = list[list[TimedAction]]  #: the actions of each rank of a pipeline


def timelines_of(result: Result) -> list[tuple[str, Timeline]]:
    """Return the projected and the measured timeline of the first run whose log has both.

    If there is no such run, return the measured timeline of the first run whose log has one.
    """
    found: list[tuple[str, Timeline]] = []
    for run in result.runs:
        if measured := _timeline_in(run.log.all(keys.TRACKED_STATS)):
            named = [(f"measured, run {run.number}", measured)]
            if projected := _timeline_in(run.log.all(keys.PROJECTION)):
                return [("projected", projected), *named]
            found = found or named
    return found


def _timeline_in(entries: Iterable[Entry]) -> Timeline:
    """Return the first timeline in ``entries``; empty if there is none."""
    for entry in entries:
        if isinstance(entry.value, dict) and "timeline" in entry.value:
            return read_timeline(entry.value["timeline"])
    return []


def read_timeline(value: object) -> Timeline:
    """Return the timeline in ``value``, which is untrusted; empty if anything in it is wrong."""
    if not isinstance(value, list) or len(value) > _MOST_RANKS:
        return []
    ranks = [_actions(rank.get("actions")) if isinstance(rank, dict) else None for rank in value]
    read = [rank for rank in ranks if rank is not None]
    if len(read) < len(ranks) or not 0 < sum(map(len, read)) <= _MOST_ACTIONS:
        return []
    return read


def _actions(value: object) -> list[TimedAction] | None:
    if not isinstance(value, list):
        return None
    actions = []
    for each in value:
        if not isinstance(each, list) or len(each) != len(TimedAction._fields):
            return None
        kind, indices = each[0], [whole(part) for part in each[1:4]]
        times = [number(part, 0, _LONGEST_STEP_S) for part in each[4:]]
        if kind not in _KINDS or None in (*indices, *times) or times[1] < times[0]:  # type: ignore[operator]  # both known
            return None
        actions.append(TimedAction(kind, *indices, *times))  # type: ignore[arg-type]  # none is None
    return actions


def _text_of(run: SealedRun, *keys: str) -> str | None:
    """Return the string at nested ``keys`` of the manifest; None if missing or empty."""
    value = run.fact(*keys)
    return value if isinstance(value, str) and value else None


def _number_of(run: SealedRun, *keys: str) -> float | None:
    """Return the number at nested ``keys`` of the manifest; None if missing."""
    value = number(run.fact(*keys))
    return None if value is None else float(value)


def _texts_of(runs: Iterable[SealedRun], *keys: str) -> list[str]:
    """Return the distinct strings at nested ``keys`` of the manifests, in order of the runs."""
    found = (_text_of(run, *keys) for run in runs)
    return list(dict.fromkeys(text for text in found if text is not None))


def _role(sealed: SealedRun, run: RunScore, reason: str) -> str:
    if run.completion == "ended":
        return f"did not complete: {_text_of(sealed, 'reason') or run.outcome}"
    if run.counts:
        return "counts" if run.completion == "reached" else "counts as a lower bound"
    return reason if reason.startswith("not scored") else f"dropped as {reason}"


def _interruptions(sealed: SealedRun, run: RunScore) -> str:
    """Return the number of resumptions in words, and the plans that the run changed to.

    The clock runs during interruptions.
    """
    resumed = sealed.log.all(keys.RESUMED)
    gaps = [entry.value.get("gap_s") for entry in resumed if isinstance(entry.value, dict)]
    gap_s = sum(number(gap, 0, _LONGEST_GAP_S) or 0.0 for gap in gaps)
    times = "once" if len(resumed) == 1 else f"{len(resumed)} times"
    further = [plan[:60] for plan in run.plans[1:4]]
    under = f", under {', then '.join(further)}" if further else ""
    return f"; resumed {times}, after {gap_s:.1f} s{under}" if resumed else ""
