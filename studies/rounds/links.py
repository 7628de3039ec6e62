"""Parse links from the free text of a published system's description."""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding, visible
from hybridperf.projection.network import NetworkLink
from hybridperf.projection.systems import find_link
from hybridperf.system.catalog import known_accelerators
from hybridperf.tasks.schema import build

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Links", "links_of_description"]

_FILE: Final = Path(__file__).with_name("rounds.toml")
_LONGEST: Final = 400  #: characters read of a field
_MOST_ADAPTERS: Final = 64
_BITS: Final = 8
_NETWORK_FIELDS: Final = ("host_networking", "host_network_card_count", "host_networking_topology")
_PCIE_FIELDS: Final = ("accelerator_host_interconnect", "accelerator_interconnect")
#: (name of an adapter, Gb/s); the first match counts
_RATES: Final = (
    *(("ndr200", 200), ("ndr", 400), ("hdr100", 100), ("hdr", 200)),
    *(("edr", 100), ("fdr", 56), ("slingshot", 200)),
)
_COUNT: Final = re.compile(r"([1-9][0-9]{0,2}) ?x")
_NUMBER: Final = re.compile(r"([1-9][0-9]{0,3}) ?(Gb|gb|GB)")  #: GB: gigabytes
_PARTS: Final = re.compile(r"[,;+]| and ")
_COMPUTE: Final = re.compile(r"compute *:")
_OTHER_USES: Final = re.compile(r"management|storage")
_PCIE: Final = re.compile(r"pcie?[ ,-]{0,2}(?:gen)? ?([345])")
_OWN_ADAPTERS: Final = re.compile(r"ethernet|gbe")


class Links(NamedTuple):
    """The links of a system's devices while all devices send."""

    inside: NetworkLink  #: link between two devices of a node
    between: NetworkLink  #: link between devices of two nodes


@dataclass(frozen=True, slots=True)
class _Node:
    """Default links of nodes with a device, for incomplete descriptions."""

    inside: str
    adapter: str = "ethernet-100"
    spans_nodes: bool = False


@dataclass(frozen=True, slots=True)
class _Assumptions:
    """Assumptions about published systems."""

    at_processor_gb_per_s: float
    most_devices_without_switch: int
    achieved_share: float
    adapter: str  #: default adapter, one per device
    device: dict[str, _Node]


@dataclass(frozen=True, slots=True)
class _Adapters:
    """Adapters of a node, or of a device."""

    count: int
    gb_per_s: float  #: nominal bandwidth of one adapter


def links_of_description(
    description: Mapping[str, object], device: str, devices_per_node: int
) -> Links:
    """Return the links of a published system's devices.

    ``device`` is the accelerator's name in the catalogue, or in the untrusted ``description``.
    ``rounds.toml`` has defaults for incomplete descriptions.

    Raises:
        UserError: exit status 4 if the catalogue has no such ``device``, and the description has
            no network adapters of the device.
    """
    assumed, node = _assumptions(), _assumptions().device.get(device)
    interconnect = _text(description, "accelerator_interconnect")
    if node is None and _OWN_ADAPTERS.search(interconnect.lower()):
        own = _adapters(interconnect)
        if own is not None:
            link = _link(own.count * own.gb_per_s * assumed.achieved_share)
            return Links(link, link)
    if not any(device == each.name for each in known_accelerators()):
        expected = "an accelerator of system/catalog.toml, or one with network adapters of its own"
        remedy = "add it to the catalogue with its links"
        finding = Finding("projection.device", expected, f"{visible(device)!r:.60}", remedy)
        raise UserError(finding, ExitCode.ENVIRONMENT)
    inside = find_link(node.inside if node else _pcie(description)).link()
    if node is not None and node.spans_nodes:
        return Links(inside, inside)
    stated = (_adapters(_text(description, field)) for field in _NETWORK_FIELDS)
    known = [adapters for adapters in stated if adapters is not None]
    usual = find_link(node.adapter if node else assumed.adapter).peak_gb_per_s
    adapters = max(known, key=_total_gb_per_s, default=_Adapters(devices_per_node, usual))
    each = adapters.gb_per_s * assumed.achieved_share
    if devices_per_node <= assumed.most_devices_without_switch:
        each = min(each, assumed.at_processor_gb_per_s)
    return Links(inside, _link(adapters.count * each / devices_per_node))


def _link(gb_per_s: float) -> NetworkLink:
    return NetworkLink(find_link("ethernet-100").latency_us / 1e6, gb_per_s * 1e9)


def _adapters(text: str) -> _Adapters | None:
    """Return the adapters in ``text`` with the highest bandwidth; None if it has none."""
    compute = _COMPUTE.search(text.lower())
    text = text[compute.end() :] if compute else text
    found = []
    for part in _PARTS.split(text):
        words = part.lower()
        rate = None if _OTHER_USES.search(words) else _gb_per_s(part)
        if rate is not None:
            count = _COUNT.search(words)
            found.append(_Adapters(min(int(count[1]), _MOST_ADAPTERS) if count else 1, rate))
    return max(found, key=_total_gb_per_s, default=None)


def _total_gb_per_s(adapters: _Adapters) -> float:
    return adapters.count * adapters.gb_per_s


def _gb_per_s(part: str) -> float | None:
    dense = part.lower().replace(" ", "").replace("-", "")
    for name, gigabits in _RATES:
        if name in dense:
            return gigabits / _BITS
    number = _NUMBER.search(part)
    if number is None:
        return None
    return float(number[1]) / (1 if number[2] == "GB" else _BITS)


def _pcie(description: Mapping[str, object]) -> str:
    """Return the PCIe link of devices, from the generation in the description."""
    text = " ".join(_text(description, field) for field in _PCIE_FIELDS).lower()
    stated = _PCIE.search(text)
    return f"pcie-{stated[1]}" if stated else "pcie-4"


def _text(description: Mapping[str, object], field: str) -> str:
    value = description.get(field)
    return value[:_LONGEST] if isinstance(value, str) else ""


@functools.cache
def _assumptions() -> _Assumptions:
    table = tomllib.loads(_FILE.read_text(encoding="utf-8"))["described"]
    return build(_Assumptions, table, path=_FILE.name, at="described")
