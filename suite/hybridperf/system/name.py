"""Derive short system names from the number and model of the devices."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hybridperf.system.describe import Machine

__all__ = ["entry_name", "system_name"]

_LONGEST = 64
_HASH = 8
# Words of processor names that do not distinguish models.
_NOISE = re.compile(
    r"\((?:R|TM)\)|@.*|\bwith\b.*|\bw/.*|\b\d+-Core\b|\b(?:CPU|Processor)\b", re.IGNORECASE
)


def system_name(description: Mapping[str, object]) -> str:
    """Return a name such as ``2c-amd-epyc`` or ``8x-nvidia-h200`` for a result of `describe`.

    With several nodes, their number is prefixed, as in ``2nodes-8x-nvidia-h200``. The name is a
    valid file name and equal for machines of one kind.
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
    """Return the folder name of results of ``plan`` on ``machine``.

    Names that are too long are truncated and end in a hash of the full name.
    """
    name = f"{machine}-{plan}"
    if len(name) <= _LONGEST:
        return name
    mark = hashlib.sha256(name.encode(errors="backslashreplace")).hexdigest()[:_HASH]
    return f"{name[: _LONGEST - _HASH - 1].rstrip('-.')}-{mark}"


def _safe(count: str, *candidates: str) -> str:
    """Join the count and the first candidate that contains letters or digits."""
    words = (re.sub(r"[^a-z0-9.]+", "-", candidate.lower()).strip("-.") for candidate in candidates)
    return _cut(f"{count}-{next(filter(None, words), 'unknown')}")


def _cut(name: str) -> str:
    return name[:_LONGEST].rstrip("-.")
