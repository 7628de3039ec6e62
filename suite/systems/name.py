"""A short name for a system: what it computes with, and on how many of them."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

    from suite.systems.describe import Machine

__all__ = ["entry_name", "system_name"]

_LONGEST = 64
_HASH = 8
# Words of processor names that tell nothing apart.
_NOISE = re.compile(
    r"\((?:R|TM)\)|@.*|\bwith\b.*|\bw/.*|\b\d+-Core\b|\b(?:CPU|Processor)\b", re.IGNORECASE
)


def system_name(description: Mapping[str, object]) -> str:
    """Return a name such as ``2c-amd-epyc`` or ``8x-nvidia-h200`` for a result of `describe`.

    Of more than one node, it begins with their number, such as ``2nodes-8x-nvidia-h200``. It is
    safe as a file name and the same for machines of one kind.
    """
    nodes = str(description.get("number_of_nodes", "1"))
    name = _machine_name(cast("Machine", description["hybridperf"]))
    return name if nodes == "1" else _cut(f"{nodes}nodes-{name}")


def _machine_name(machine: Machine) -> str:
    if used := machine["accelerators"]["used"]:
        names = [
            gpu["name"] for gpu in machine["accelerators"]["gpus"] if gpu["used"] and gpu["name"]
        ]
        return _safe(f"{used}x", names[0] if names else "gpu")
    processor = machine["processor"]
    model = _NOISE.sub(" ", processor["model"])
    return _safe(f"{processor['usable_cores']}c", model, processor["architecture"], "cpu")


def entry_name(machine: str, plan: str) -> str:
    """Return the name under which results of ``machine`` and ``plan`` stand.

    One that is too long is cut, and ends in a hash of the whole.
    """
    name = f"{machine}-{plan}"
    if len(name) <= _LONGEST:
        return name
    mark = hashlib.sha256(name.encode(errors="backslashreplace")).hexdigest()[:_HASH]
    return f"{name[: _LONGEST - _HASH - 1].rstrip('-.')}-{mark}"


def _safe(count: str, *candidates: str) -> str:
    """Join the count and the first candidate of which letters or digits are left."""
    words = (re.sub(r"[^a-z0-9.]+", "-", candidate.lower()).strip("-.") for candidate in candidates)
    return _cut(f"{count}-{next(filter(None, words), 'unknown')}")


def _cut(name: str) -> str:
    return name[:_LONGEST].rstrip("-.")
