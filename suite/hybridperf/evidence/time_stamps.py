"""RFC 3161 time stamps: an outside authority's word that a file existed at a time.

``openssl ts`` verifies them offline, against the certificates of authorities in one PEM file.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from hybridperf.untrusted import DOCUMENT_CAP_BYTES, read_bounded, reason

__all__ = ["AUTHORITIES", "TimeStamp", "verify_time_stamp"]

AUTHORITIES: Final = "time_stamp_authorities.pem"  #: file beside the folders of organisations
_TOOL: Final = "openssl"
_TIMEOUT_S: Final = 30
_TIME: Final = re.compile(r"^Time stamp: (.+?)(?:\.\d+)? (\d{4}) GMT$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class TimeStamp:
    """The outcome of verifying a time stamp."""

    time_ms: int | None  #: Unix time at which the file existed; None if it is not proven
    problem: str = ""


def verify_time_stamp(path: Path, reply: Path, authorities: Path) -> TimeStamp:
    """Verify the time-stamp reply of an authority for the file ``path``."""
    if shutil.which(_TOOL) is None:
        return TimeStamp(None, f"{_TOOL} is not installed here")
    names = {"data": path, "reply": reply, "authorities": authorities}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name, source in names.items():
                # What was read is verified: the files may be links by now.
                Path(folder, name).write_bytes(read_bounded(source, DOCUMENT_CAP_BYTES))
        except FileNotFoundError as error:
            return TimeStamp(None, f"there is no {Path(error.filename).name}")
        except (OSError, ValueError) as error:
            return TimeStamp(None, reason(error))
        verified = _output(folder, "-verify", "-data", "data", "-CAfile", "authorities")
        text = _output(folder, "-reply", "-text")
    match = None if text is None else _TIME.search(text)
    if verified is None or match is None:
        return TimeStamp(None, "no authority that is listed has stamped this file")
    stamped = datetime.strptime(f"{match[1]} {match[2]}", "%b %d %H:%M:%S %Y").replace(tzinfo=UTC)
    return TimeStamp(int(stamped.timestamp() * 1000))


def _output(folder: str, action: str, *arguments: str) -> str | None:
    """Return what ``openssl ts`` prints about the reply in ``folder``; None if it fails."""
    command = [_TOOL, "ts", action, "-in", "reply", *arguments]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None
