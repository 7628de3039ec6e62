"""What a mistake of a new submitter is, and what ``hybridperf check`` says to it."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from unittest import mock

from hybridperf.cli import main
from hybridperf.log.package import find_results
from tests.packages import write_result
from tests.rules.mlperf.strict_logs import RULESET
from tests.rules.round_folder import write_submission

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hybridperf.log.package import Package

GOLDEN: Final = Path(__file__).parent / "golden"
OURS: Final = "submission"  #: the folder of a valid result of this suite
ROUND: Final = "round"  #: the folder of a valid submission to a round of MLPerf
STRICTLY: Final = ("--ruleset", RULESET, "--mode", "strict")
_HASH: Final = re.compile(r"\b[0-9a-f]{12}\.\.\.")  # they change with the tasks
_CHOICES: Final = re.compile(r"(?<=\(choose from ).*(?=\))")  # quoted by some versions of Python


@dataclass(frozen=True)
class Case:
    """One mistake: what was done, how a valid submission comes to it, and what is asked then."""

    name: str
    mistake: str
    make: Callable[[Path], object]  #: is given the folder that holds `OURS` and `ROUND`
    arguments: Sequence[str]

    @property
    def golden(self) -> Path:
        """Return the file of the message that is wanted."""
        return GOLDEN / f"{self.name}.txt"


def ours(name: str, mistake: str, edit: Callable[[Package], object], *arguments: str) -> Case:
    """Return a mistake with a result of this suite."""

    def make(folder: Path) -> None:
        (package,) = find_results(folder / OURS)
        edit(package)

    return Case(name, mistake, make, ("check", *(arguments or (OURS,))))


def published(name: str, mistake: str, edit: Callable[[Path], object], *arguments: str) -> Case:
    """Return a mistake with a submission to a round of MLPerf, whose folder ``edit`` is given."""
    asked = ("check", *(arguments or (ROUND,)), *STRICTLY)
    return Case(name, mistake, lambda folder: edit(folder / ROUND), asked)


def asked(name: str, mistake: str, *arguments: str) -> Case:
    """Return a mistake on the command line alone."""
    return Case(name, mistake, lambda _folder: None, arguments)


def write_valid(folder: Path) -> None:
    """Write what the mistakes are made with."""
    write_result(folder / OURS)
    write_submission(folder / ROUND)


def message_of(case: Case, valid: Path, folder: Path) -> str:
    """Return what a submitter sees who makes the mistake in a copy of ``valid`` in ``folder``."""
    shutil.copytree(valid, folder)
    case.make(folder)
    with contextlib.chdir(folder), permissions_kept(), mock.patch.dict(os.environ):
        os.environ.pop("COLUMNS", None)  # pytest's workers have it
        said, refused = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(refused):
            try:
                status = main(case.arguments)
            except SystemExit as end:  # argparse ends the process itself
                status = int(end.code or 0)
    command = " ".join(("hybridperf", *case.arguments))
    text = _HASH.sub("<12 digits>...", said.getvalue() + refused.getvalue())
    text = _CHOICES.sub(lambda match: match[0].replace("'", ""), text)
    return f"# {case.mistake}\n$ {command}\n{text}exit status {status}\n"


@contextlib.contextmanager
def permissions_kept() -> Iterator[None]:
    """Refuse files that nobody may read, also where the tests run as root, who reads anything."""
    really_open = os.open

    def careful_open(path: Path, flags: int, mode: int = 0o777) -> int:
        if os.path.lexists(path) and not os.lstat(path).st_mode & 0o444:
            raise PermissionError(13, os.strerror(13), str(path))
        return really_open(path, flags, mode)

    with mock.patch("os.open", careful_open):
        yield
