"""Probe physical network adapters and those emulated for a virtual machine."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from hybridperf.system import files

__all__ = ["Adapter", "probe_network"]


class Adapter(TypedDict):
    """A network adapter, without its name and addresses."""

    kind: str  #: ``ethernet``, ``infiniband``, ``wireless`` or unknown
    driver: str
    speed_bits_per_second: int | None


_KINDS = {1: "ethernet", 32: "infiniband"}  # ARPHRD_ETHER and ARPHRD_INFINIBAND


def probe_network(root: Path = Path("/")) -> list[Adapter]:
    """Describe the adapters in a deterministic order, without bridges, tunnels and loopback."""
    found = [
        Adapter(
            kind=_kind(path),
            driver=files.link_name(path / "device/driver"),
            speed_bits_per_second=_speed(path),
        )
        for path in files.children(root / "sys/class/net")
        if (path / "device").exists()
    ]
    return sorted(found, key=str)


def _kind(path: Path) -> str:
    if (path / "wireless").exists():
        return "wireless"
    return _KINDS.get(files.number(path / "type") or 0, "")


def _speed(path: Path) -> int | None:
    megabits = files.number(path / "speed")
    # Drivers report -1 or 0 for an unknown speed.
    return megabits * 1_000_000 if megabits is not None and megabits > 0 else None
