"""An organisation's statement that it has run another's result again, and what it found."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hybridperf.errors import UserError
from hybridperf.log.chain import SUMS
from hybridperf.tasks.schema import build
from hybridperf.untrusted import DOCUMENT_CAP_BYTES, read_bounded, read_object, reason

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hybridperf.log.package import Package

__all__ = ["Attestation", "Subject", "attestation_file", "read_attestations", "subject_of"]

_NAME: Final = re.compile(r"rerun_([A-Za-z0-9][A-Za-z0-9._-]{0,63})\.json")


@dataclass(frozen=True, slots=True)
class Subject:
    """The result that was run again, as it was sealed."""

    org: str
    system: str
    benchmark: str
    sums_sha256: str  #: of its SHA256SUMS, which names every file


@dataclass(frozen=True, slots=True)
class Attestation:
    """What an organisation found when it ran a result again."""

    format: int
    by: str  #: organisation
    subject: Subject
    runs: int  #: completed runs of the re-run
    commit: str  #: of the code, as the result names it
    rerun_sums_sha256: str  #: of the re-run's own SHA256SUMS
    quality: bool  #: every completed re-run reached the target, scored again
    samples: bool  #: samples to target are consistent, by Welch's test at 5 %
    samples_p_value: float | None  #: None if all runs took the same number
    like_hardware: bool  #: models and numbers of processors and accelerators are equal
    time: bool  #: the 95 % intervals of the time to train overlap
    time_s: float  #: olympic mean of the re-run; 0 if it has too few runs

    @property
    def problem(self) -> str:
        """Return what keeps the re-run from confirming the result; ``""`` if nothing does."""
        found = {
            "it did not reach the target": self.quality,
            "its samples to target differ": self.samples,
            "it was made on other hardware": self.like_hardware,
            "it has too few runs for a time to train": self.time_s > 0,
            "its time to train differs": self.time,
        }
        return next((words for words, holds in found.items() if not holds), "")

    def as_json(self) -> dict[str, object]:
        """Return the fields as the file holds them."""
        return dataclasses.asdict(self)


def attestation_file(package: Package, org: str) -> Path:
    """Return the path, in the result's folder, of the statement of ``org``."""
    return package.folder / f"rerun_{org}.json"


def subject_of(package: Package) -> Subject:
    """Describe a result by place and content.

    Raises:
        OSError: if it has no SHA256SUMS.
        ValueError: if that is not a regular file.
    """
    sums = read_bounded(package.folder / SUMS, DOCUMENT_CAP_BYTES)
    digest = hashlib.sha256(sums).hexdigest()
    return Subject(package.org, package.system, package.benchmark, digest)


def read_attestations(package: Package) -> Iterator[tuple[Path, Attestation | str]]:
    """Yield the path of each statement about a result, with the statement or why it is none."""
    for path in sorted(package.folder.glob("rerun_*.json")):
        name = _NAME.fullmatch(path.name)
        try:
            statement = build(Attestation, read_object(path), path=path.name)
        except (OSError, ValueError) as error:
            yield path, reason(error)
        except UserError as error:
            yield path, str(error)
        else:
            agrees = name is not None and statement.by == name[1]
            yield path, statement if agrees else "the name of another organisation than its own"
