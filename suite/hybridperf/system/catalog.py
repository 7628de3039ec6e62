"""Read system descriptions: counts of devices, and the vendors' figures of known accelerators."""

from __future__ import annotations

import functools
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import msgspec

from hybridperf.untrusted import DEVICES_CAP, parse_count

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "Accelerator",
    "accelerator_count",
    "accelerators_per_node",
    "device_count",
    "find_accelerator",
    "known_accelerators",
    "node_count",
]


def node_count(description: Mapping[str, object]) -> int | None:
    """Return the number of nodes, at least 1; None if not stated."""
    return parse_count(description.get("number_of_nodes"), 1)


def accelerators_per_node(description: Mapping[str, object]) -> int | None:
    """Return the number of accelerators per node, which may be 0; None if not stated."""
    return parse_count(description.get("accelerators_per_node"))


def accelerator_count(description: Mapping[str, object] | None) -> int | None:
    """Return the number of accelerators of all nodes, which may be 0; None if unknown.

    ``number_of_nodes`` does not default to 1, since MLPerf requires it.
    """
    stated = description or {}
    return _product(node_count(stated), accelerators_per_node(stated))


def device_count(description: Mapping[str, object] | None) -> int | None:
    """Return the number of accelerators, or else cores, of all nodes; None if unknown."""
    stated = description or {}
    if accelerators_per_node(stated):
        return accelerator_count(stated)
    cores = parse_count(stated.get("host_processor_core_count"), 1)
    sockets = parse_count(stated.get("host_processors_per_node"), 1) or 1
    return _product(node_count(stated), sockets, cores)


def _product(*counts: int | None) -> int | None:
    total = 1
    for count in counts:
        if count is None:
            return None
        total *= count
    return total if total <= DEVICES_CAP else None


_Peak: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=1e9)]

_FILE: Final = Path(__file__).with_suffix(".toml")
_LONGEST: Final = 200  # maximum number of characters matched


class Accelerator(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An accelerator: its name in system descriptions, and its vendor's peaks."""

    name: str
    names: tuple[str, ...]  #: patterns of its names in system descriptions
    peak_tflops: dict[str, _Peak]  #: peaks of dense arithmetic, by number format
    source: str
    memory_gb_per_s: _Peak | None = None
    memory_gb: _Peak | None = None  #: capacity of the memory
    link_gb_per_s: _Peak | None = None  #: sum of all links, both directions


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
    return msgspec.convert(table["accelerator"], tuple[Accelerator, ...])


@functools.cache
def _patterns() -> list[tuple[re.Pattern[str], Accelerator]]:
    return [
        (re.compile(rf"(?<![a-z0-9]){name}(?![a-z0-9])"), accelerator)
        for accelerator in known_accelerators()
        for name in accelerator.names
    ]
