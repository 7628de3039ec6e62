"""Findings: one defect each, with its place and remedy."""

from __future__ import annotations

import enum
import errno
import os
import unicodedata
from dataclasses import asdict, dataclass
from typing import Final

__all__ = ["UNREADABLE", "Finding", "Severity", "unreadable", "visible"]

UNREADABLE: Final = "package.unreadable"  #: rule for files that this machine cannot read
#: errors of the machine or its permissions, which do not depend on the submission
_MACHINE_ERRORS: Final = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, errno.ETIMEDOUT),
        *(errno.EMFILE, errno.ENFILE, errno.ENOMEM),
    }
)


class Severity(enum.StrEnum):
    """Severity of a finding: an error makes a result invalid, a warning does not."""

    ERROR = "error"
    WARNING = "warning"


def visible(text: str) -> str:
    r"""Escape control, format and bidirectional characters of untrusted text, as in ``\x1b``."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char.encode("unicode_escape").decode()
        if unicodedata.category(char) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
        else char
        for char in text
    )


@dataclass(frozen=True, slots=True)
class Finding:
    """One deviation: expected, found, place and remedy."""

    rule: str  #: stable id, such as ``log.chain``
    expected: str
    found: str
    remedy: str  #: an imperative clause without a full stop
    path: str = ""
    line: int | None = None  #: counted from 1
    severity: Severity = Severity.ERROR

    @property
    def place(self) -> str:
        """Return ``path:line``, ``path`` without a line, or ``""`` without a path."""
        return f"{self.path}:{self.line}" if self.line is not None else self.path

    @property
    def sentence(self) -> str:
        """Return the finding as one sentence that is safe to print."""
        where = f"{self.place}: " if self.place else ""
        stop = "" if self.remedy.endswith("?") else "."
        text = f"{where}expected {self.expected}, found {self.found}; {self.remedy}{stop}"
        return visible(text)

    def as_json(self) -> dict[str, object]:
        """Return the fields as published in JSON output."""
        return asdict(self) | {"severity": str(self.severity)}


def unreadable(error: Exception, path: str) -> Finding | None:
    """Return a finding if ``error`` says that this machine cannot read ``path``, else None."""
    if not isinstance(error, OSError) or error.errno not in _MACHINE_ERRORS:
        return None
    expected, found = "a file or folder that can be read", os.strerror(error.errno or 0).lower()
    return Finding(UNREADABLE, expected, found, "get permission to read it", visible(path))
