"""The order for one run: what the harness hands to the trainer, as one JSON file."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from suite.logs.clock import LogClock  # noqa: TC001 - resolved when a spec is read
from suite.plan import ParallelPlan
from suite.runs.atomic import canonical_json, write_atomically
from suite.tasks.overrides import apply_overrides
from suite.tasks.schema import build
from suite.tasks.task import Division, Task, read_task

__all__ = ["NODE_VARIABLE", "RUN_VARIABLE", "RunSpec"]

RUN_VARIABLE: Final = "HYBRIDPERF_RUN"  #: environment variable that names the order's file
NODE_VARIABLE: Final = "HYBRIDPERF_NODE"  #: that says which node started a process of the run


@dataclass(frozen=True, slots=True)
class RunSpec:
    """Everything that determines one run; its folder holds all that the run writes."""

    folder: str
    attempt: int
    task_path: str  #: from the folder, where it is a user's own
    trainer: str  #: package with the modules ``train`` and ``predict``
    overrides: dict[str, object]
    plan: str
    seed: int
    org: str
    platform: str
    division: Division
    clock: LogClock
    machine_start: str = ""  #: tells the start of the machine that the clock counts from
    code: dict[str, object] = field(default_factory=dict)  #: hashes of the code that began the run
    nodes: int = 1  #: that share the ranks equally
    rendezvous: str = ""  #: HOST:PORT of node 0, where there are more
    resumed: int | None = None  #: the epoch whose checkpoint a resumed run goes on from

    @classmethod
    def from_environment(cls) -> RunSpec:
        """Read the order that `RUN_VARIABLE` names."""
        try:
            path = Path(os.environ[RUN_VARIABLE])
        except KeyError:
            message = f"{RUN_VARIABLE} is not set: start this trainer with 'hybridperf run'"
            raise RuntimeError(message) from None
        return cls.read(path)

    @classmethod
    def read(cls, path: Path) -> RunSpec:
        """Read the order in the file at ``path``, whose folder may have been moved since."""
        spec = build(cls, json.loads(path.read_text(encoding="utf-8")), path=str(path))
        return dataclasses.replace(spec, folder=str(path.parent.absolute()))

    def write(self) -> None:
        """Write the order into its folder."""
        write_atomically(self.path, canonical_json(dataclasses.asdict(self)))

    def task(self) -> Task:
        """Return the task with its overrides applied."""
        return apply_overrides(read_task(Path(self.folder, self.task_path)), self.overrides)

    def parallel_plan(self) -> ParallelPlan:
        """Return the parallel plan."""
        return ParallelPlan.parse(self.plan)

    @property
    def path(self) -> Path:
        """Return where the order stands."""
        return Path(self.folder, "run.json")

    @property
    def log(self) -> Path:
        """Return where rank 0 writes the log."""
        return Path(self.folder, "log.txt")

    @property
    def output(self) -> Path:
        """Return where whatever the ranks print goes."""
        return self.output_of(0)

    def output_of(self, node: int) -> Path:
        """Return where whatever the ranks on ``node`` print goes: no two machines append to one."""
        return Path(self.folder, f"output_{node}.txt" if node else "output.txt")

    @property
    def pulse(self) -> Path:
        """Return where every rank notes its progress."""
        return Path(self.folder, "pulse.bin")

    @property
    def weights(self) -> Path:
        """Return the folder of the final weights, one safetensors file a stage."""
        return Path(self.folder, "weights")

    @property
    def checkpoints(self) -> Path:
        """Return the folder of the run's checkpoints."""
        return Path(self.folder, "checkpoints")

    @property
    def predictions(self) -> Path:
        """Return where the fresh process puts what it predicts for the evaluation samples."""
        return Path(self.folder, "predictions.npy")
