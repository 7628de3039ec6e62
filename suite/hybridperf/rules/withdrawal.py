"""Results that their publisher withdrew: ``withdrawn.toml`` beside the organisations' folders.

A result stays where it is, with its date and the reason, and has no place any more::

    [[withdrawn]]
    result = "acme/results/h100-dp8/resnet-laptop"
    date = 2026-11-25
    reason = "the learning rate was that of another task"
    superseded_by = "acme/results/h100-dp8-b/resnet-laptop"  # if another result replaces it

The file says what a publisher decided. A rule that finds the later of two results would have to
guess which systems are the same, and could not tell a correction from a second system.
"""

from __future__ import annotations

import datetime as dt
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import visible
from hybridperf.log.package import result_at
from hybridperf.score.validity import Judgement
from hybridperf.untrusted import DOCUMENT_CAP_BYTES, read_bounded, reason

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["WITHDRAWN_FILE", "Withdrawal", "read_withdrawals"]

WITHDRAWN_FILE: Final = "withdrawn.toml"
_KEYS: Final = {"result", "date", "reason", "superseded_by"}
_LONGEST: Final = 300  #: characters of a reason


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """The withdrawal of one result by its publisher."""

    date: dt.date
    reason: str
    superseded_by: str  #: path of the result that replaces it, "" for none

    @property
    def judgement(self) -> Judgement:
        """Return the judgement on the result."""
        return Judgement.SUPERSEDED if self.superseded_by else Judgement.WITHDRAWN

    @property
    def words(self) -> str:
        """Return date, successor and reason as a clause."""
        by = f" by {self.superseded_by}" if self.superseded_by else ""
        return f"{self.judgement} on {self.date.isoformat()}{by}: {self.reason}"


def read_withdrawals(root: Path) -> dict[Path, Withdrawal]:
    """Return the withdrawals in the collection ``root`` by folder of the result; often none.

    Raises:
        UserError: exit status 3 if the file cannot be understood, or names a result that is not
            there; 4 if it cannot be read.
    """
    path = root / WITHDRAWN_FILE
    try:
        stated = tomllib.loads(read_bounded(path, DOCUMENT_CAP_BYTES).decode())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        status = ExitCode.ENVIRONMENT if isinstance(error, OSError) else ExitCode.INVALID
        raise _refusal(path, "a TOML file", reason(error), status) from error
    rows = stated.get("withdrawn", [])
    if set(stated) - {"withdrawn"} or not isinstance(rows, list):
        raise _refusal(path, "tables [[withdrawn]] only", ", ".join(map(repr, stated))[:80])
    return dict(_withdrawal(root, path, number, row) for number, row in enumerate(rows, 1))


def _withdrawal(root: Path, path: Path, number: int, row: object) -> tuple[Path, Withdrawal]:
    if not isinstance(row, dict) or set(row) - _KEYS:
        expected = f"keys {', '.join(sorted(_KEYS))} in [[withdrawn]] {number}"
        raise _refusal(path, expected, repr(row)[:80])
    date, why = row.get("date"), row.get("reason")
    if type(date) is not dt.date:
        raise _refusal(
            path, f"a date such as 2026-11-25 in [[withdrawn]] {number}", repr(date)[:80]
        )
    if not isinstance(why, str) or not 0 < len(why.strip()) <= _LONGEST:
        expected = f"a reason of 1 to {_LONGEST} characters in [[withdrawn]] {number}"
        raise _refusal(path, expected, repr(why)[:80])
    folder, name = _result(root, path, row.get("result")), ""
    if "superseded_by" in row:
        later = _result(root, path, row["superseded_by"])
        if later == folder:
            raise _refusal(path, "another result in superseded_by", "the result itself")
        name = later.relative_to(root).as_posix()
    return folder, Withdrawal(date, visible(why.strip()), name)


def _result(root: Path, path: Path, name: object) -> Path:
    """Return the folder of the result ``name``, a path from the folder of the collection."""
    folder = root / name if isinstance(name, str) else root
    package = result_at(folder)
    inside = isinstance(name, str) and ".." not in folder.parts and name == name.strip("/")
    if not inside or package is None or package.root != root or not folder.is_dir():
        expected = "a result that is there, as <org>/results/<system>/<benchmark>"
        raise _refusal(path, expected, repr(name)[:120])
    return folder


def _refusal(
    path: Path, expected: str, found: str, status: ExitCode = ExitCode.INVALID
) -> UserError:
    remedy = "correct it, or remove the table"
    return UserError.of("withdrawn", expected, found, remedy, path=str(path), exit_code=status)
