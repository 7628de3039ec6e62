"""Extract archives of real data under every Python that the project takes."""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def extract(archive: Path, folder: Path, wanted: Callable[[str], bool] | None = None) -> None:
    """Extract the files of ``archive``, all or those with ``wanted`` names, into ``folder``."""
    # Python has filters since 3.11.4, and may warn where none is named.
    options: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(archive) as content:
        members = (each for each in content if wanted is None or wanted(each.name))
        content.extractall(folder, members, **options)
