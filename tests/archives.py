"""Extract archives of real data under every Python that the project takes."""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def extract(archive: Path, folder: Path) -> None:
    """Extract the tar file ``archive`` into ``folder``."""
    # Python has filters since 3.11.4, and may warn where none is named.
    options: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(archive) as content:
        content.extractall(folder, **options)
