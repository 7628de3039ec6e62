"""Which GPUs the environment lets a program use, by the rules of the CUDA runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["visible_gpus"]


def visible_gpus(setting: str | None, identities: Sequence[Sequence[str]]) -> list[int]:
    """Return the GPUs that ``CUDA_VISIBLE_DEVICES`` names, in its order, counted from 0.

    ``identities[n]`` holds the identifiers of GPU n and of its MIG instances. A list ends at its
    first entry that names no GPU, and a repeated entry voids it.
    """
    if setting is None:
        return list(range(len(identities)))
    found: list[int] = []
    entries: list[str] = []
    for entry in (part.strip() for part in setting.split(",")):
        gpu = _gpu(entry, identities)
        if gpu is None:
            break
        if entry in entries:
            return []
        found.append(gpu)
        entries.append(entry)
    return found


def _gpu(entry: str, identities: Sequence[Sequence[str]]) -> int | None:
    if entry.isascii() and entry.isdigit():
        return int(entry) if len(entry) < 5 and int(entry) < len(identities) else None
    if not entry.startswith(("GPU-", "MIG-")):
        return None
    owners = [
        gpu for gpu, names in enumerate(identities) if any(name.startswith(entry) for name in names)
    ]
    return owners[0] if len(owners) == 1 else None
