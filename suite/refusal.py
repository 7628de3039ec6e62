"""Exit statuses, and the exception that ends a command with a sentence."""

from __future__ import annotations

import enum

from suite.findings import Finding, visible

__all__ = ["ExitCode", "Refusal"]


class ExitCode(enum.IntEnum):
    """Exit statuses of ``hybridperf``; published in docs/commands.md and stable."""

    OK = 0
    MISSED = 1  #: a benchmark ran and missed its target
    USAGE = 2  #: the command line, the plan or an override is wrong
    INVALID = 3  #: a log, a result or a submission breaks a rule
    ENVIRONMENT = 4  #: this machine lacks something: data, ranks, space, permission
    INTERRUPTED = 5  #: stopped on request; the same command goes on where it stopped


class Refusal(Exception):  # noqa: N818 - a refusal is an answer, not a malfunction
    """Say no in one sentence that names what, where, expected, found and the remedy.

    Carries the exit status and, where the reason is a finding, the finding itself.
    """

    def __init__(self, reason: Finding | str, exit_code: ExitCode) -> None:
        self.finding = reason if isinstance(reason, Finding) else None
        self.exit_code = exit_code
        super().__init__(reason.sentence if isinstance(reason, Finding) else visible(reason))
