"""The system description: MLPerf's fields, and what was measured to fill them."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict, cast

from suite.systems.accelerators import Accelerators, probe_accelerators
from suite.systems.cpu import Processor, probe_processor
from suite.systems.memory import Memory, probe_memory
from suite.systems.mlperf import mlperf_fields
from suite.systems.network import Adapter, probe_network
from suite.systems.privacy import Guard
from suite.systems.software import Software, probe_software
from suite.systems.storage import Storage, probe_storage
from suite.systems.surroundings import Surroundings, probe_surroundings
from suite.systems.torch_build import torch_build

__all__ = ["Machine", "describe", "describe_with_torch", "probe_machine"]


class Machine(TypedDict):
    """All that is measured: what is unknown is None or empty, sizes are in the names' units."""

    processor: Processor
    memory: Memory
    storage: Storage
    accelerators: Accelerators
    network: list[Adapter]
    surroundings: Surroundings
    software: Software


def describe(root: Path = Path("/"), nodes: int = 1) -> dict[str, object]:
    """Describe ``nodes`` such machines by MLPerf's fields; ``hybridperf`` is a `Machine`, this one.

    The result is ready for JSON, holds nothing that names the machine or its user, and is the
    same on every call. The four fields about the submission are left empty.
    """
    guard = Guard.of_this_machine(root)
    machine = guard.scrub(probe_machine(root))
    return {**guard.scrub(mlperf_fields(machine, nodes)), "hybridperf": machine}


def describe_with_torch(nodes: int = 1) -> dict[str, object]:
    """Describe this machine as `describe`, with how its PyTorch was built; takes seconds."""
    description = describe(nodes=nodes)
    machine = cast("dict[str, object]", description["hybridperf"])
    machine["torch_build"] = torch_build()
    return description


def probe_machine(root: Path = Path("/")) -> Machine:
    """Measure this machine; the result is not yet fit to be published."""
    return Machine(
        processor=probe_processor(root),
        memory=probe_memory(root),
        storage=probe_storage(root),
        accelerators=probe_accelerators(root),
        network=probe_network(root),
        surroundings=probe_surroundings(root),
        software=probe_software(),
    )
