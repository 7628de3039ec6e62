"""Describe the checks without a rule function: made while reading, or by ruleset data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hybridperf.findings import UNREADABLE, Finding, Severity
from hybridperf.log.package import PUT_BACK
from hybridperf.log.reader import A_LOG, PUT_IT_THERE

if TYPE_CHECKING:
    from hybridperf.log.log import Log

__all__ = ["READING", "Reading", "unreadable_log"]

_LOGGING: Final = "MLPerf logging specification: one line, :::MLLOG and a JSON object, an event"
_CHECKER: Final = "MLPerf's compliance checker of the round"
_AGAIN: Final = "run again"
_LOGGER: Final = "use an MLPerf logger, and let one process write each line"


@dataclass(frozen=True, slots=True)
class Reading:
    """The description of a check: its criterion, source and remedy."""

    checks: str
    source: str
    remedy: str
    ours: bool = False  #: applies to this suite's results
    rounds: bool = False  #: applies to MLPerf rounds
    severity: Severity = Severity.ERROR


READING: Final = {  # by rule id
    "log.file": Reading(
        "The log is a text file that can be read, of at most 64 MiB, with lines of a log in it.",
        "HybridPerf rules, section 2: what a log is",
        PUT_IT_THERE,
        ours=True,
        rounds=True,
    ),
    UNREADABLE: Reading(
        "This machine can read every file and folder; else a result is not judged.",
        "HybridPerf rules, section 3: what is judged",
        "get permission to read it",
        ours=True,
        rounds=True,
    ),
    "log.line": Reading(
        "Every MLLOG line is UTF-8 text with one JSON object of the right fields and types.",
        _LOGGING,
        _AGAIN,
        ours=True,
    ),
    "run.benchmark": Reading(
        "The log names a task of this suite.",
        "HybridPerf rules, section 1: results compare only within one version of a task",
        "see 'hybridperf list'; logs of a round of MLPerf are checked with --ruleset",
        ours=True,
    ),
    "result.task": Reading(
        "The file beside the logs of a user's own task is a task that can be read.",
        "HybridPerf rules, section 1: a user's own task",
        PUT_BACK,
        ours=True,
    ),
    "result.name": Reading(
        "Folders are named in letters, digits, '.', '_' and '-', a letter or digit first.",
        "HybridPerf rules, section 3: how folders are named",
        "rename the folder",
        ours=True,
    ),
    "result.manifest": Reading(
        "A run's manifest is JSON that can be read, in the format that this suite writes.",
        "HybridPerf rules, section 3: the manifest of a run",
        PUT_BACK,
        ours=True,
    ),
    "system.file": Reading(
        "The description of the system is JSON that can be read.",
        "MLPerf submission rules: every system is described",
        f"{PUT_BACK}, or correct what was written by hand",
        ours=True,
        rounds=True,
    ),
    "result.copies": Reading(
        "No run of a result stands in another result that is checked with it.",
        "HybridPerf rules, section 8: runs are independent",
        "remove what was copied; every result is made of runs of its own",
        ours=True,
    ),
    "result.disputed": Reading(
        "No run of a result stands in another result of equal right.",
        "HybridPerf rules, section 8: runs are independent",
        "sign the original with 'hybridperf sign', or remove the copy",
        ours=True,
    ),
    "mlperf.line": Reading(
        "Every MLLOG line has a JSON object with a key and a time.",
        _LOGGING,
        _LOGGER,
        rounds=True,
    ),
    "mlperf.fields": Reading(
        "No JSON object of a line has a key twice; the checker took the last.",
        _LOGGING,
        _LOGGER,
        rounds=True,
        severity=Severity.WARNING,
    ),
    "mlperf.keys": Reading(
        "Every required key occurs as often as the ruleset says; a repeated one with the same "
        "value is a warning.",
        f"{_CHECKER}: REQ of each key",
        "log every required key as often as the ruleset says",
        rounds=True,
    ),
    "mlperf.values": Reading(
        "Every value keeps the constraints that the ruleset has for its key.",
        f"{_CHECKER}: CHECK of each key",
        "run with a value that the ruleset allows, and log it",
        rounds=True,
    ),
    "mlperf.metadata": Reading(
        "A key's metadata has the names, and the values, that the ruleset asks for.",
        f"{_CHECKER}: CHECK of each key",
        "log the key with this metadata",
        rounds=True,
    ),
    "mlperf.target": Reading(
        "One evaluation at least reached the target.",
        f"{_CHECKER}: ATLEAST_ONE_CHECK of eval_accuracy",
        "train to the target; a run that misses it scores as the slowest",
        rounds=True,
    ),
    "mlperf.tensors": Reading(
        "The initialisation of every tensor of the reference model is logged.",
        f"{_CHECKER}: weights_initialization",
        "log how every tensor of the model was initialised",
        rounds=True,
    ),
    "mlperf.order": Reading(
        "Initialisation, start and stop follow each other in the file.",
        f"{_CHECKER}: the order of init_start, init_stop, run_start and run_stop",
        "initialise, then start the clock, and stop it last",
        rounds=True,
    ),
    "mlperf.initialisation": Reading(
        "Initialisation took no longer than the division allows.",
        "MLPerf Training rules, section 11: time of model initialisation",
        "initialise faster, or start the clock earlier",
        rounds=True,
    ),
}


def unreadable_log(log: Log) -> list[Finding]:
    """Return the findings of an unreadable or empty log; an empty list for other logs."""
    if not log.entries and not log.findings:
        return [Finding("log.file", A_LOG, "no such line", PUT_IT_THERE, log.path)]
    barred = any(each.rule in {"log.file", UNREADABLE} for each in log.findings)
    return log.findings if barred else []
