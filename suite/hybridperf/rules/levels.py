"""Verification levels of results, computed from their evidence, never claimed.

Each level requires everything that the levels below it require. docs/trust.md explains them; a test
compares its table with `LEVELS`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hybridperf.findings import Finding, Severity, visible
from hybridperf.log import keys
from hybridperf.log.chain import SUMS, parse_sums
from hybridperf.log.package import result_names
from hybridperf.rules.evidence import (
    RERUN,
    RESULT,
    SELF_REPORTED,
    SIGNERS,
    Signature,
    Trust,
    labels_here,
    read_attestations,
    subject_of,
    verify_file,
)
from hybridperf.rules.result_rules import completed, has_known_peak, known_forward_flops
from hybridperf.rules.verdict import is_shortfall
from hybridperf.untrusted import DOCUMENT_CAP_BYTES, number, read_bounded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from hybridperf.log.package import Result, SealedRun
    from hybridperf.tasks.task import Task

__all__ = ["LEVELS", "VerificationLevel", "signature_of", "trust_of"]


@dataclass(frozen=True, slots=True)
class CheckedResult:
    """A result with the findings in it, and its task."""

    result: Result
    task: Task | None
    findings: Sequence[Finding]


@dataclass(frozen=True, slots=True)
class VerificationLevel:
    """A verification level: its requirements, and the threat that it protects against."""

    name: str
    requires: str
    protects_against: str
    lacking: Callable[[CheckedResult], str]  #: returns the missing requirement; "" if none is
    evidence: Callable[[CheckedResult], str] = lambda _: ""  #: describes the evidence


def trust_of(result: Result, task: Task | None, findings: Sequence[Finding]) -> Trust:
    """Return the highest level that ``result`` reaches, given the ``findings`` of all rules."""
    checked = CheckedResult(result, task, findings)
    reached, lacks = LEVELS[0], ""
    for level in LEVELS[1:]:
        if lacks := level.lacking(checked):
            lacks = f"{level.name} requires {lacks}"
            break
        reached = level
    proofs, unverified = [reached.evidence(checked)], []
    # A signature on what is not chained would lend it a trust that it has not.
    if reached.name not in {SELF_REPORTED, "log-verified"}:
        signature = signature_of(result)
        if signature is not None and signature.good:
            proofs.append(f"signed by {signature.key}")
            if not signature.verified:
                unverified.append(f"signature not verified here: {signature.problem}")
    if reached.name not in {SELF_REPORTED, "log-verified", "chained"}:
        unverified += _not_recounted(checked)
    return Trust(
        reached.name, "; ".join(filter(None, proofs)), visible(lacks), "; ".join(unverified)
    )


def signature_of(result: Result) -> Signature | None:
    """Verify the organisation's signature of a result; None if there is none."""
    package = result.package
    sums = package.folder / SUMS
    signature = sums.with_name(f"{SUMS}.sig")
    if not signature.is_file():
        return None
    return verify_file(sums, signature, _signers(result), package.org, RESULT)


def _signers(result: Result) -> Path:
    return result.package.root / SIGNERS


def _lacks_rules(checked: CheckedResult) -> str:
    errors = [
        each
        for each in checked.findings
        if each.severity is Severity.ERROR and not is_shortfall(each)
    ]
    if errors:
        more = f" and {len(errors) - 1} more" if len(errors) > 1 else ""
        return f"no error by the rules: {errors[0].rule}{more}"
    if checked.task is None or any(run.manifest is None for run in checked.result.runs):
        return "runs of this suite, with their manifests"
    return ""


def _lacks_chain(checked: CheckedResult) -> str:
    runs = checked.result.runs
    for run in runs:
        entry = run.log.value(keys.ATTEMPT)
        if not isinstance(entry, dict) or "link" not in entry:
            return f"seeds committed before the first run, and run {run.number} has none"
    commitments = {str(run.log.value(keys.ATTEMPT)["seeds"]) for run in runs}  # type: ignore[index]  # checked above
    if len(commitments) > 1:
        return "one commitment to the seeds of all runs"
    facts = (checked.result.system or {}).get("hybridperf")
    if not isinstance(facts, dict) or not {"accelerators", "processor"} <= facts.keys():
        return "a description with what the harness found of the machine"
    return _lacks_sums(checked.result)


def _lacks_sums(result: Result) -> str:
    package = result.package
    try:
        sums = parse_sums(read_bounded(package.folder / SUMS, DOCUMENT_CAP_BYTES).decode())
        for run in result.runs:
            log, manifest = result_names(run.number)
            content = read_bounded(package.folder / manifest, DOCUMENT_CAP_BYTES)
            sealed = {log: run.log.sha256, manifest: hashlib.sha256(content).hexdigest()}
            for name, digest in sealed.items():
                if sums.get(name) != digest:
                    return f"{name} as {SUMS} lists it"
    except (OSError, ValueError):
        return f"a list {SUMS} of every file"
    return ""


def _lacks_rescoring(checked: CheckedResult) -> str:
    task = checked.task
    assert task is not None  # a lower level requires it
    if not has_known_peak(checked.result):
        return "devices of a known peak, to bound the time of its runs"
    for run in completed(checked.result):
        which = f"run {run.number}"
        if not _sandbox(run):
            return f"a sandbox around trainer and predictor, and {which} had none"
        if run.fact("model", "sha256") is None or run.fact("predictor", "package") is None:
            return f"the names of the model's tensors and of its predictor, which {which} lacks"
        if not isinstance(run.fact("predictions", "path"), str):
            return f"the predictions of every final model, which {which} lacks"
        if task.initial is not None and run.log.first(keys.INITIAL) is None:
            return f"an evaluation of the given weights before the first step, which {which} lacks"
        if lacks := _lacks_models(run):
            return f"{lacks}, which {which} lacks"
        if known_forward_flops(run, task) is None:
            return f"the suite's own table of units, to bound the time of {which}"
        stop = run.log.first(keys.RUN_STOP)
        reached = stop is not None and stop.metadata.get("status") == "success"
        if reached and number(run.fact("rescoring", "quality"), task.quality.target, 1) is None:
            return f"a final model that reaches the target when scored again, and {which} has none"
    return ""


def _lacks_models(run: SealedRun) -> str:
    """Return what a run lacks of models handed over on the clock; ``""`` if nothing."""
    resumed = run.log.first(keys.RESUMED)
    line = 0 if resumed is None else run.log.all(keys.RESUMED)[-1].line
    stop = run.log.first(keys.RUN_STOP)
    last = next(reversed(run.log.all(keys.EVAL_ACCURACY)), None)
    handed_over = [
        keys.progress_of(entry.metadata)
        for entry in run.log.all(keys.WEIGHTS)
        if entry.line > line and stop is not None and entry.line < stop.line
    ]
    if last is None or keys.progress_of(last.metadata) not in handed_over:
        return "the weights that predicted last, handed over before the verdict"
    if handed_over[1:] and number(run.fact("rescoring", "earlier", "quality"), 0, 1) is None:
        return "the score of an earlier model, drawn at random after the run"
    return ""


def _not_recounted(checked: CheckedResult) -> list[str]:
    """Return that predictions could not be counted again, if this machine lacks their data."""
    task = checked.task
    assert task is not None  # a lower level requires it
    for run in completed(checked.result):
        if labels_here(task, run.fact("data_sha256")) is None:
            return [f"not recounted here: the data of {task.name} is not on this machine"]
    return []


def _sandbox(run: SealedRun) -> str:
    """Return the name of the sandbox that a run was made in; ``""`` for the open mode."""
    kind = run.fact("sandbox", "kind")
    if run.fact("mode") != "sandboxed" or not isinstance(kind, str) or kind in {"", "none"}:
        return ""
    abi = run.fact("sandbox", "abi")
    name = f"{kind} ABI {abi}" if isinstance(abi, int) else kind
    if run.fact("sandbox", "namespaces") is not True:
        return name
    shared = run.fact("sandbox", "ports") is not None  # of several nodes
    return f"{name} with namespaces{' except of the network' if shared else ''}"


def _sandbox_names(checked: CheckedResult) -> str:
    return visible(" and ".join(sorted({_sandbox(run)[:60] for run in completed(checked.result)})))


def _confirmed_by(checked: CheckedResult) -> tuple[list[str], str]:
    """Return the organisations whose re-runs confirm the result, and why others' do not."""
    result, found, problem = checked.result, list[str](), ""
    for path, statement in read_attestations(result.package):
        if isinstance(statement, str):
            problem = statement
            continue
        name = statement.by
        signed = verify_file(
            path, path.with_name(f"{path.name}.sig"), _signers(result), name, RERUN
        )
        if name == result.package.org:
            problem = "a re-run by another organisation than the result's own"
        elif statement.subject != subject_of(result.package):
            problem = f"a re-run of this result, and that by {name} is of another"
        elif not (signed.good and signed.verified):
            problem = f"a signature, and of that by {name} {signed.problem}"
        elif statement.problem:
            problem = f"a re-run that confirms it, and of that by {name} {statement.problem}"
        else:
            found.append(name)
    return found, problem


def _lacks_rerun(checked: CheckedResult) -> str:
    found, problem = _confirmed_by(checked)
    return "" if found else problem or "a re-run by another organisation, signed with its key"


LEVELS: Final = (
    VerificationLevel(
        SELF_REPORTED,
        "a log",
        "nothing: it is a claim",
        lambda _: "",
    ),
    VerificationLevel(
        "log-verified",
        "no error by any rule of `hybridperf check`, except missed targets and missing runs",
        "mistakes: accidental edits, missing attempts, another task, model or schedule, and times "
        "that no such machine reaches",
        _lacks_rules,
    ),
    VerificationLevel(
        "chained",
        "seeds that were all committed before the first run, each attempt's first line with the "
        "last hash of the one before, the harness's own description of the machine, and a list of "
        "the hashes of all files",
        "an operator who leaves out, swaps or repeats runs of a result without writing all that "
        "follows anew; with a signature, who signed is known",
        _lacks_chain,
    ),
    VerificationLevel(
        "re-scored",
        "trainer and predictor in a named sandbox, the suite's own predictor (closed division), "
        "the task's model, weights handed over on the clock before each verdict, of which the last "
        "and one drawn at random are scored again, a bound on the time by the suite's own table of "
        "units, and kept predictions that the harness counted and that reach the target",
        "a cheating trainer under an honest operator",
        _lacks_rescoring,
        _sandbox_names,
    ),
    VerificationLevel(
        "re-run",
        "another organisation's signed statement that it ran the result again, on like hardware, "
        "with equal quality, consistent samples to target and a time within the interval",
        "a lying operator, as far as the two organisations are independent",
        _lacks_rerun,
        lambda checked: visible(f"by {', '.join(_confirmed_by(checked)[0])}"),
    ),
)
