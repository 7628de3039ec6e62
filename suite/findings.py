"""Findings: how everything in this project says "no"."""

from __future__ import annotations

import enum
import unicodedata
from dataclasses import asdict, dataclass

__all__ = ["Finding", "Severity", "visible"]


class Severity(enum.StrEnum):
    """How much a finding matters: an error makes a result invalid, a warning does not."""

    ERROR = "error"
    WARNING = "warning"


def visible(text: str) -> str:
    r"""Show control, format and bidirectional characters of untrusted text as ``\x1b`` escapes."""
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
    """One thing that is not as it should be, where it is, and how to mend it."""

    rule: str  #: stable id, such as ``log.chain``
    expected: str
    found: str
    remedy: str  #: an imperative clause without a full stop
    path: str = ""
    line: int | None = None  #: counted from 1
    severity: Severity = Severity.ERROR

    @property
    def place(self) -> str:
        """Return ``path:line``, as far as they are known."""
        return f"{self.path}:{self.line}" if self.line is not None else self.path

    @property
    def sentence(self) -> str:
        """Return the finding as one sentence that is safe to print."""
        where = f"{self.place}: " if self.place else ""
        stop = "" if self.remedy.endswith("?") else "."
        text = f"{where}expected {self.expected}, found {self.found}; {self.remedy}{stop}"
        return visible(text)

    def as_json(self) -> dict[str, object]:
        """Return the fields of the published JSON contract."""
        return asdict(self) | {"severity": str(self.severity)}
