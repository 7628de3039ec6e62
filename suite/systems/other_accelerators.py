"""Accelerators that are not NVIDIA's, as torch counts and names them."""

from __future__ import annotations

import importlib.metadata

from suite.systems.torch_build import torch_build, torch_release

__all__ = ["other_accelerators"]


def other_accelerators() -> list[str]:
    """Return the name of each accelerator that torch was built, or extended, to use.

    Extensions such as those for NPUs say so by an entry point of the group ``torch.backends``.
    """
    release = torch_release()
    extended = importlib.metadata.entry_points(group="torch.backends")
    if not (release["hip"] or release["xpu"] or extended):
        return []  # asking torch takes seconds
    build = torch_build()
    count, name = build.get("accelerators"), build.get("accelerator")
    return [str(name or "accelerator")] * count if isinstance(count, int) else []
