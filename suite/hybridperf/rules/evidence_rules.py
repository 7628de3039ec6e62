"""Rules for the evidence beside logs, and for where a result comes from."""

from __future__ import annotations

import hashlib
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from hybridperf.findings import Severity, visible
from hybridperf.log import keys
from hybridperf.log.chain import GENESIS, SUMS
from hybridperf.log.package import NAME, PUT_BACK
from hybridperf.rules.evidence import (
    RESULT,
    SIGNERS,
    has_key,
    is_link,
    labels_here,
    quality_of,
    read_attestations,
    read_classes,
    read_tensors,
    reveals,
    seed_of,
    verify_file,
)
from hybridperf.rules.result_rules import marks_of
from hybridperf.rules.rule import Deviation, rule
from hybridperf.tasks.registry import accepted_tensors
from hybridperf.untrusted import (
    PREDICTIONS_CAP_BYTES,
    WEIGHTS_CAP_BYTES,
    number,
    open_bounded,
    read_bounded,
    reason,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hybridperf.log.package import Result, SealedRun
    from hybridperf.tasks.task import Task


_SOURCE: Final = "HybridPerf rules, section 8"
_PIECE_BYTES: Final = 2**20
_ROUNDING: Final = 1e-9  # of a share that is computed from the same numbers
_PUBLISH: Final = "publish every attempt as the harness sealed it, or make the result anew"


@rule(
    "run.model",
    scope="run",
    source=f"{_SOURCE}: closed means the task's model",
    remedy="train the model that the task describes, or enter the open division",
)
def model_of_the_task(run: SealedRun, task: Task) -> Iterator[Deviation]:
    """A closed run's final weights are those of the task's model, by name and shape.

    The suite's own predictor has scored them.
    """
    if run.log.value(keys.SUBMISSION_DIVISION) != "closed":
        return
    found, accepted = run.fact("model", "sha256"), accepted_tensors(task)
    if found is not None and accepted and found not in accepted:
        count, values = run.fact("model", "count"), run.fact("model", "values")
        expected = f"tensors with SHA-256 {accepted[0][:12]}..., those of the task's model"
        yield Deviation(expected, f"{count!r:.20} of {values!r:.20} numbers, {found!s:.12}...")
    predictor = run.fact("predictor", "package")
    if predictor is not None and predictor != task.trainer:
        yield Deviation(f"predictions by {task.trainer}", f"by {predictor!r:.60}")


@rule(
    "result.predictions",
    scope="result",
    source=f"{_SOURCE}: predictions of the final model are kept",
    remedy=PUT_BACK,
)
def predictions_kept(result: Result, task: Task) -> Iterator[Deviation]:
    """Predictions that a manifest names are there, and give the quality that it states.

    They are counted where this machine has the task's data, in the edition that the run had.
    """
    for run in result.runs:
        name = run.fact("predictions", "path")
        if name is None:
            continue
        if not isinstance(name, str) or not NAME.fullmatch(name):
            yield Deviation("a file beside the log", f"{name!r:.60}", run=run.number)
            continue
        path = result.package.folder / name
        try:
            digest = hashlib.sha256(read_bounded(path, PREDICTIONS_CAP_BYTES)).hexdigest()
        except (OSError, ValueError) as error:
            yield Deviation(f"predictions in {name}", reason(error), run=run.number)
            continue
        if digest != (stated := f"{run.fact('predictions', 'sha256')}"):
            expected = f"{name} with SHA-256 {stated:.12}..."
            yield Deviation(expected, f"{digest[:12]}...", run=run.number)
            continue
        if (labels := labels_here(task, run.fact("data_sha256"))) is None:
            continue
        quality = number(run.fact("rescoring", "quality"), 0, 1)
        try:
            counted = quality_of(read_classes(path), labels)
        except ValueError as error:
            yield Deviation(f"predictions of {len(labels)} samples", str(error), run=run.number)
            continue
        if quality is None or abs(counted - quality) > _ROUNDING:
            expected = f"the quality {quality!r:.20} that the manifest states"
            yield Deviation(expected, f"{counted:.6f}, counted from {name}", run=run.number)


@rule(
    "result.weights",
    scope="result",
    source=f"{_SOURCE}: weights may be kept too",
    remedy=PUT_BACK,
)
def weights_as_sealed(result: Result, task: Task) -> Iterator[Deviation]:
    """Weights that are kept beside a log have the hashes and tensors that its manifest states."""
    for run in result.runs:
        stated, hashes = run.fact("weights"), run.fact("weights_sha256")
        if not isinstance(stated, list) or not isinstance(hashes, dict):
            continue
        names = [name for name in stated if isinstance(name, str) and NAME.fullmatch(name)]
        paths = [result.package.folder / name for name in names]
        if paths and not any(path.exists() for path in paths):
            continue  # kept elsewhere
        expected = "the weights that the manifest names"
        try:
            digests, tensors = [*map(_sha256, paths)], read_tensors(paths)
        except (OSError, ValueError) as error:
            yield Deviation(expected, reason(error), run=run.number)
            continue
        if len(names) < len(stated) or sorted(digests) != sorted(map(str, hashes.values())):
            yield Deviation(expected, "others", run=run.number)
        elif tensors.sha256 != run.fact("model", "sha256"):
            yield Deviation("the tensors that the manifest states", "others", run=run.number)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open_bounded(path, WEIGHTS_CAP_BYTES) as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


@rule(
    "result.chain",
    scope="result",
    source=f"{_SOURCE}: the first line carries the last hash of the attempt before",
    remedy=_PUBLISH,
)
def attempts_chained(result: Result, task: Task) -> Iterator[Deviation]:
    """Each attempt continues the one before, where it says so, and none in between is left out."""
    before, said = GENESIS, False
    for run in sorted(result.runs, key=lambda each: each.number):
        entry = run.log.first(keys.ATTEMPT)
        stated = entry.value if entry is not None and isinstance(entry.value, dict) else {}
        if entry is None:
            if said:
                yield Deviation(
                    f"{keys.ATTEMPT}, as in the attempts before", "none", run=run.number
                )
        else:
            if entry is not run.log.entries[0]:
                expected = f"{keys.ATTEMPT} in the first line"
                yield Deviation(expected, "a later one", entry.line, run.number)
            if whole(stated.get("number"), 0) != run.number:
                found = f"{stated.get('number')!r:.40}"
                yield Deviation(f"attempt {run.number}", found, entry.line, run.number)
            if stated.get("previous") != before:
                expected = f"the last hash of the attempt before, {before[:12]}..."
                found = f"{stated.get('previous')!s:.12}..."
                yield Deviation(expected, found, entry.line, run.number)
            said = True
        before = run.log.last_hash


@rule(
    "result.committed_seeds",
    scope="result",
    source=f"{_SOURCE}: all seeds are fixed before the first run",
    remedy=_PUBLISH,
)
def seeds_committed(result: Result, task: Task) -> Iterator[Deviation]:
    """Seeds follow from the commitment of their first run, in order, where there is one."""
    last: dict[str, int] = {}  # position by commitment
    ended = False
    for run in sorted(result.runs, key=lambda each: each.number):
        entry = run.log.first(keys.ATTEMPT)
        stated = entry.value if entry is not None and isinstance(entry.value, dict) else {}
        if entry is None or "link" not in stated:
            continue
        commitment, link = str(stated.get("seeds")), stated["link"]
        position = whole(stated.get("position"), 1)
        if not is_link(link) or not position or not reveals(str(link), position, commitment):
            expected = "a link of the seeds that were committed to"
            yield Deviation(expected, f"{link!s:.12}...", entry.line, run.number)
            continue
        if run.log.value(keys.SEED) != (seed := seed_of(str(link))):
            found = f"{run.log.value(keys.SEED)!r:.40}"
            yield Deviation(f"seed {seed}, which was committed to", found, run=run.number)
        previous = last.get(commitment)
        # An attempt that ended early passes its seed on.
        due = position if previous is None else previous if ended else previous + 1
        if position != due:
            expected = f"the seed at position {due} of those committed to"
            yield Deviation(expected, f"that at {position}", entry.line, run.number)
        last[commitment] = position
        ended = run.log.first(keys.ENDING) is not None


@rule(
    "result.overlap",
    scope="result",
    source=f"{_SOURCE}: attempts of a result follow one another",
    remedy=_PUBLISH,
)
def no_overlap(result: Result, task: Task, *, tolerance_s: float) -> Iterator[Deviation]:
    """No attempt begins before the one before it has ended."""
    with_lines = [run for run in result.runs if run.log.entries]
    for one, other in pairwise(sorted(with_lines, key=lambda run: run.number)):
        end_ms, start_ms = one.log.entries[-1].time_ms, other.log.entries[0].time_ms
        if (over_s := (end_ms - start_ms) / 1000) > tolerance_s:
            expected = f"a beginning after the end of attempt {one.number}"
            yield Deviation(expected, f"{over_s:g} s before it", run=other.number)


@rule(
    "result.durations",
    scope="result",
    source=f"{_SOURCE}: runs are independent",
    remedy=_PUBLISH,
)
def durations_differ(result: Result, task: Task) -> Iterator[Deviation]:
    """No two runs took equal times to the last digit, and no two have the same final weights."""
    seen: dict[tuple[str, object], int] = {}
    for run in result.runs:
        for what, value in marks_of(run):
            if (what, value) in seen:
                first = seen[what, value]
                yield Deviation(f"{what} of its own", f"that of run {first}", run=run.number)
                break
            seen[what, value] = run.number


@rule(
    "result.imports",
    scope="result",
    source=f"{_SOURCE}: all runs have the same code",
    remedy="make the runs again with code that nobody changes meanwhile",
)
def same_imports(result: Result, task: Task) -> Iterator[Deviation]:
    """A module that no installer recorded is the same in all runs; so is Python's own library."""
    seen: dict[str, tuple[object, int]] = {}
    for run in result.runs:
        listed = run.fact("imports", "elsewhere")
        hashes: dict[str, object] = dict(listed) if isinstance(listed, dict) else {}
        if (library := run.fact("imports", "python_sha256")) is not None:
            hashes["Python's own library"] = library
        for name, digest in hashes.items():
            before, first = seen.setdefault(name, (digest, run.number))
            if before != digest:
                expected = f"{visible(name)[:80]} with SHA-256 {before!s:.12}..., as in run {first}"
                yield Deviation(expected, f"{digest!s:.12}...", run=run.number)


@rule(
    "run.date",
    scope="run",
    source=f"{_SOURCE}: no run is from the future",
    remedy="set the clock of the machine, and run again",
)
def not_to_come(run: SealedRun, task: Task, *, most_ahead_s: float) -> Iterator[Deviation]:
    """The run was made before it is checked."""
    if run.log.entries:
        last = run.log.entries[-1]
        ahead_s = last.time_ms / 1000 - time.time()
        if ahead_s > most_ahead_s:
            yield Deviation(
                "a date that has been", f"one in {ahead_s / 86_400:.1f} days", last.line
            )


@rule(
    "result.signature",
    scope="result",
    source=f"{_SOURCE}: an organisation with a key signs its results",
    remedy="sign it with 'hybridperf sign', or remove what is not the organisation's",
)
def signed_by_its_organisation(result: Result, task: Task) -> Iterator[Deviation]:
    """A result of an organisation that has a key is signed with it."""
    package = result.package
    sums, signers = package.folder / SUMS, package.root / SIGNERS
    signature = sums.with_name(f"{SUMS}.sig")
    if has_key(signers, package.org):
        found = verify_file(sums, signature, signers, package.org, RESULT)
        if not found.good:
            yield Deviation(f"a signature of {SUMS} by {visible(package.org)}", found.problem)
    elif signature.exists():
        yield Deviation(
            f"a key of {visible(package.org)} in {SIGNERS}, beside the organisations' folders",
            "none, so the signature cannot be verified",
            severity=Severity.WARNING,
        )


@rule(
    "result.rerun",
    scope="result",
    source=f"{_SOURCE}: statements on re-runs",
    remedy="have the organisation write it again with 'hybridperf rerun', or remove it",
)
def reruns_stated(result: Result, task: Task) -> Iterator[Deviation]:
    """A statement on a re-run can be read."""
    for path, statement in read_attestations(result.package):
        if isinstance(statement, str):
            place = result.package.name_of(path)
            yield Deviation("a statement that 'hybridperf rerun' wrote", statement, path=place)


@rule(
    "result.hardware",
    scope="result",
    source=f"{_SOURCE}: the description does not contradict itself",
    remedy="restore the description that the harness wrote",
)
def hardware_agrees(result: Result, task: Task) -> Iterator[Deviation]:
    """MLPerf's fields of accelerators and processors follow from what the harness found."""
    system = result.system or {}
    facts = system.get("hybridperf")
    if not isinstance(facts, dict):
        return
    place = result.package.name_of(result.package.system_file)
    accelerators, processor = facts.get("accelerators"), facts.get("processor")
    if isinstance(accelerators, dict):
        stated = f"{system.get('accelerators_per_node')}"
        used = whole(accelerators.get("used"), 0)
        if used is not None and stated.isdigit() and int(stated) != used:
            expected = f"{used} accelerators_per_node, as the harness found"
            yield Deviation(expected, f"{stated:.20}", path=place)
    if isinstance(processor, dict):
        model, cores = processor.get("model"), whole(processor.get("physical_cores"), 0)
        stated = f"{system.get('host_processor_model_name')}"
        if isinstance(model, str) and stated != model:
            expected = f"the processor {model!r:.60}, as the harness found"
            yield Deviation(expected, f"{stated!r:.60}", path=place)
        per_node = f"{system.get('host_processor_core_count')}"
        sockets = whole(processor.get("sockets"), 1) or 1
        if cores and per_node.isdigit() and int(per_node) not in {cores, cores // sockets}:
            expected = f"{cores // sockets} cores of each processor, as the harness found"
            yield Deviation(expected, per_node[:20], path=place)
