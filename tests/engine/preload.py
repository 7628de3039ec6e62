"""What the process that ranks are forked from imports and reads, once for all of them.

Searching for garbage meanwhile, and in all that was imported whenever a rank does, finds none; in a
rank it would also copy every page of it.
"""

from __future__ import annotations

import gc
import importlib
from typing import Final

_MODULES: Final = (
    *(f"tests.engine.{name}_worlds" for name in ("checkpoint", "law", "optimizer")),
    "tests.engine.worlds",
    *(f"hybridperf_reference.engine.{name}" for name in ("pipeline", "sharding", "tensor")),
    *(f"hybridperf_reference.{name}.chain" for name in ("bert", "resnet", "vgg", "vit")),
    "multiprocessing.popen_fork",  # of worker processes
    "torch.utils.serialization.config",  # when something is saved
)

gc.disable()
for _name in _MODULES:
    importlib.import_module(_name)
for _family in importlib.import_module("tests.engine.families").FAMILIES.values():
    _family.splits()
gc.freeze()
gc.enable()
