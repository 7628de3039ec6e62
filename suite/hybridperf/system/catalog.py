"""Look up the vendors' peak FLOP/s and bandwidths of known accelerators."""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hybridperf.tasks.schema import build

__all__ = ["Accelerator", "find_accelerator", "known_accelerators"]

_FILE: Final = Path(__file__).with_suffix(".toml")
_LONGEST: Final = 200  # maximum number of characters matched


@dataclass(frozen=True, slots=True)
class Accelerator:
    """An accelerator in the catalogue."""

    name: str
    names: tuple[str, ...]  #: patterns of its names in system descriptions
    peak_tflops: dict[str, float]  #: dense, by number format
    source: str
    memory_gb_per_s: float | None = None
    memory_gb: float | None = None  #: capacity
    link_gb_per_s: float | None = None  #: sum of all links, both directions


def find_accelerator(model_name: str) -> Accelerator | None:
    """Return the accelerator named in a system description; None if it is not catalogued.

    The longest match is used if several match, such as ``H100`` and ``H100-PCIe``.
    """
    text = re.sub(r"[^a-z0-9]+", "-", model_name[:_LONGEST].casefold())
    found = [
        (len(match[0]), accelerator)
        for pattern, accelerator in _patterns()
        if (match := pattern.search(text)) is not None
    ]
    return max(found, key=lambda each: each[0], default=(0, None))[1]


@functools.cache
def known_accelerators() -> tuple[Accelerator, ...]:
    """Return all accelerators in the catalogue."""
    table = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return tuple(
        build(Accelerator, each, path=_FILE.name, at=f"accelerator.{number}")
        for number, each in enumerate(table["accelerator"])
    )


@functools.cache
def _patterns() -> list[tuple[re.Pattern[str], Accelerator]]:
    return [
        (re.compile(rf"(?<![a-z0-9]){name}(?![a-z0-9])"), accelerator)
        for accelerator in known_accelerators()
        for name in accelerator.names
    ]
