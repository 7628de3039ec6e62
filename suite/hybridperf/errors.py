"""Exit statuses, and the exception that ends a command with an error message."""

from __future__ import annotations

import enum
from typing import Self

from hybridperf.findings import Finding, visible

__all__ = ["ExitCode", "UserError", "missing_package"]

_TABLES_EXTRA = frozenset({"pandas", "pyarrow"})  #: packages of the extra ``tables``


class ExitCode(enum.IntEnum):
    """Exit statuses of ``hybridperf``, stable and documented in docs/commands.md."""

    OK = 0
    MISSED = 1  #: a benchmark ran and missed its target
    USAGE = 2  #: the command line, the plan or an override is wrong
    INVALID = 3  #: a log, a result or a submission breaks a rule, or a claim is contradicted
    ENVIRONMENT = 4  #: this machine lacks something: data, ranks, space, permission
    INTERRUPTED = 5  #: stopped on request; the same command resumes
    SLOWER = 6  #: a result is slower than its baseline by more than the limit that was given


class UserError(Exception):
    """An error of the user or the environment, reported as one sentence without a traceback.

    ``exit_code`` is the exit status of the command; ``finding`` is the reason's `Finding` or None.
    """

    def __init__(self, reason: Finding | str, exit_code: ExitCode) -> None:
        self.finding = reason if isinstance(reason, Finding) else None
        self.exit_code = exit_code
        super().__init__(reason.sentence if isinstance(reason, Finding) else visible(reason))

    @classmethod
    def of(
        cls,
        rule: str,
        expected: str,
        found: str,
        remedy: str,
        *,
        path: str = "",
        exit_code: ExitCode = ExitCode.USAGE,
    ) -> Self:
        """Return the error of a `Finding` with these fields."""
        return cls(Finding(rule, expected, found, remedy, path), exit_code)


def missing_package(name: str) -> UserError:
    """Return the error, of exit status 4, for a missing package."""
    extra = "tables" if name in _TABLES_EXTRA else "train"
    remedy = f"install it with: pip install 'hybridperf[{extra}]'"
    return UserError.of(
        "packages",
        f"the package {name}",
        "no such package",
        remedy,
        exit_code=ExitCode.ENVIRONMENT,
    )
