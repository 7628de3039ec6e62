"""The specification of one run, which the harness passes to the trainer as a JSON file."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from hybridperf.errors import ExitCode, UserError
from hybridperf.log.writer import LogClock  # noqa: TC001 - resolved when a spec is read
from hybridperf.plan import ParallelPlan
from hybridperf.run.files import canonical_json, write_atomically
from hybridperf.run.initial import InitialWeights  # noqa: TC001 - resolved when a spec is read
from hybridperf.tasks.overrides import apply_overrides
from hybridperf.tasks.registry import read_task
from hybridperf.tasks.schema import build
from hybridperf.tasks.task import Division, Task  # noqa: TC001 - as above
from hybridperf.untrusted import read_object, reason

__all__ = [
    "NODE_VARIABLE",
    "RUN_VARIABLE",
    "Mode",
    "RunSpec",
    "checkpoints_folder",
    "pulse_file",
    "this_node",
    "weights_folder",
    "weights_part",
    "weights_parts",
    "work_folder",
]

#: sandboxed: samples reach ranks only on the clock, and labels to be predicted never; open: the
#: data set is within their reach
Mode = Literal["sandboxed", "open"]
RUN_VARIABLE: Final = "HYBRIDPERF_RUN"  #: environment variable: path of the specification
#: environment variable of a run's processes: node number and process id of the harness there
NODE_VARIABLE: Final = "HYBRIDPERF_NODE"
_EARLIER: Final = "earlier_"  #: prefix of the files of a model of an earlier evaluation


def this_node() -> int:
    """Return the number of the node on which this process of a run was started."""
    return int(os.environ.get(NODE_VARIABLE, "0").partition(" ")[0])


@dataclass(frozen=True, slots=True)
class RunSpec:
    """Everything that determines one run.

    All files of the run are in ``folder``. Only the harness writes there, but for the folders
    ``work``, which is the trainer's, and ``scoring``, which is the predictor's.
    """

    folder: str
    attempt: int
    task_path: str  #: absolute for a task of the suite, relative to ``folder`` for a user's own
    trainer: str  #: package with the modules ``train`` and ``predict``
    overrides: dict[str, object]
    plan: str
    seed: int
    org: str
    platform: str
    division: Division
    clock: LogClock
    machine_start: str = ""  #: boot id of the machine whose monotonic clock ``clock`` counts
    code: dict[str, object] = field(default_factory=dict)  #: hashes of the code that started it
    nodes: int = 1  #: number of nodes, each with the same number of ranks
    rendezvous: str = ""  #: HOST:PORT of node 0 if there is more than one node
    #: first entry of the log: the attempt before and the commitment to all seeds
    provenance: dict[str, object] = field(default_factory=dict)
    keep_weights: bool = False  #: keep the final weights beside the log
    publish_errors: bool = False  #: publish the texts of exceptions, too
    resumed: int | None = None  #: step that the run, once resumed, begins with; 0: anew
    plan_number: int = 0  #: of the current segment: 0 is ``plan``, the others are in ``elastic``
    segment_nodes: tuple[int, ...] = ()  #: nodes with its ranks; empty: all nodes
    #: plans that go on, each after another loss of a rank or node; None: such a loss ends the run
    elastic: tuple[str, ...] | None = None
    ranks_per_node: int = 1  #: largest number of ranks for which a node has devices
    checkpoint_s: float = 0.0  #: seconds between checkpoints beside evaluations; 0: none
    mode: Mode = "open"
    sandbox: dict[str, object] = field(default_factory=lambda: {"kind": "none"})
    projection: dict[str, object] = field(default_factory=dict)  #: a step's; empty if unknown
    epoch: int | None = None  #: epoch of the evaluation whose model is scored; None: the last
    initial: InitialWeights | None = None  #: weights to begin from; None: random weights

    @classmethod
    def from_environment(cls) -> RunSpec:
        """Read the specification whose path is in the environment variable `RUN_VARIABLE`.

        Raises:
            RuntimeError: if the variable is not set.
            UserError: as `read`.
        """
        try:
            path = Path(os.environ[RUN_VARIABLE])
        except KeyError:
            message = f"{RUN_VARIABLE} is not set: start this trainer with 'hybridperf run'"
            raise RuntimeError(message) from None
        return cls.read(path)

    @classmethod
    def read(cls, path: Path) -> RunSpec:
        """Read the specification at ``path``; its folder may have been moved since it was written.

        Raises:
            UserError: exit status 3 if the file cannot be read, 2 if a field is missing or invalid.
        """
        try:
            values = read_object(path)
        except (OSError, ValueError) as error:
            raise UserError.of(
                "run.spec",
                "the file that the harness wrote",
                reason(error),
                "remove its folder to give the attempt up",
                path=str(path),
                exit_code=ExitCode.INVALID,
            ) from error
        spec = build(cls, values, path=str(path))
        return dataclasses.replace(spec, folder=str(path.parent.absolute()))

    def of_epoch(self, epoch: int) -> RunSpec:
        """Return the specification for rescoring the model of the evaluation after ``epoch``.

        Weights, predictions and `path` are other files of the same folder than the final model's.
        """
        return dataclasses.replace(self, epoch=epoch)

    def write(self) -> None:
        """Write the specification to `path`, atomically."""
        write_atomically(self.path, canonical_json(dataclasses.asdict(self)))

    def task(self) -> Task:
        """Read the task and apply the overrides."""
        return apply_overrides(read_task(Path(self.folder, self.task_path)), self.overrides)

    def parallel_plan(self) -> ParallelPlan:
        """Parse the parallel plan of the current segment."""
        return ParallelPlan.parse((self.plan, *(self.elastic or ()))[self.plan_number])

    @property
    def rank_nodes(self) -> tuple[int, ...]:
        """Return the nodes that share the ranks of the current segment equally; node 0 is first."""
        return self.segment_nodes or tuple(range(self.nodes))

    @property
    def saves_checkpoints(self) -> bool:
        """Return whether the run saves a checkpoint at each evaluation that misses the target."""
        asked = self.elastic is not None or self.checkpoint_s > 0
        return asked or self.task().evaluation.checkpoint

    @property
    def predictor(self) -> str:
        """Return the package whose module ``predict`` scores the final model.

        In the closed division, where the model is the task's, it is the task's own.
        """
        return self.task().trainer if self.division == "closed" else self.trainer

    @property
    def evaluates_first(self) -> bool:
        """Return whether ranks evaluate given weights before the clock starts."""
        return self.initial is not None and not self.resumed

    @property
    def sandboxed(self) -> bool:
        """Return whether ranks and predictor run in a sandbox, even if the mode is open."""
        return self.sandbox.get("kind") != "none"

    @property
    def weights_seed(self) -> int:
        """Return the seed of the initial weights and of dropout, which ranks get first.

        Ranks cannot derive ``seed``, the seed of the order of samples, from it in time: trying all
        seeds takes days.
        """
        derived = hashlib.pbkdf2_hmac("sha256", b"%d" % self.seed, b"weights", 100_000, 4)
        return int.from_bytes(derived) >> 1

    @property
    def path(self) -> Path:
        """Return the file that holds this specification."""
        return self._of_model("run.json")

    @property
    def earlier(self) -> Path:
        """Return the file of the specification `of_epoch`, which exists if a model was drawn."""
        return Path(self.folder, f"{_EARLIER}run.json")

    def _of_model(self, name: str) -> Path:
        return Path(self.folder, name if self.epoch is None else f"{_EARLIER}{name}")

    @property
    def ending(self) -> Path:
        """Return the file in which the harness records the `Ending` until the attempt is sealed."""
        return Path(self.folder, "ending.json")

    @property
    def disk_full(self) -> Path:
        """Return the file whose existence marks an attempt during which the disk was full."""
        return Path(self.folder, "disk_full")

    @property
    def log(self) -> Path:
        """Return the log file."""
        return Path(self.folder, "log.txt")

    @property
    def output(self) -> Path:
        """Return the file with the standard output and error of the ranks on node 0."""
        return self.output_of(0)

    def output_of(self, node: int) -> Path:
        """Return the file with the standard output and error of the ranks on ``node``.

        Each node has its own: appending from two machines to one file is not safe on network
        storage.
        """
        return Path(self.folder, f"output_{node}.txt" if node else "output.txt")

    @property
    def timed_predictions(self) -> Path:
        """Return the file with the classes that the model predicted on the clock."""
        return self._of_model("predictions.npy")

    @property
    def work(self) -> Path:
        """Return the folder that the trainer may write: weights, checkpoints, scratch."""
        return work_folder(Path(self.folder))

    def pulse_of(self, node: int) -> Path:
        """Return the file in which the ranks on ``node`` record their progress."""
        return pulse_file(self.work, node)

    @property
    def weights(self) -> Path:
        """Return the folder of the weights to be scored, in one safetensors file per part."""
        return weights_folder(self.work) if self.epoch is None else self._of_model("weights")

    @property
    def checkpoints(self) -> Path:
        """Return the folder of the run's checkpoints."""
        return checkpoints_folder(self.work)

    @property
    def final_predictions(self) -> Path:
        """Return the file with the predictions that were counted, in the order of the samples."""
        return self._of_model("final_predictions.npy")

    @property
    def imports(self) -> Path:
        """Return the file with the `import_facts` of the ranks."""
        return Path(self.folder, "imports.json")

    @property
    def scoring(self) -> Path:
        """Return the folder of a rescoring: the harness's inputs and the predictions for them."""
        return Path(self.folder, "scoring")


def work_folder(folder: Path) -> Path:
    """Return the trainer's folder in the ``folder`` of an attempt."""
    return folder / "work"


def pulse_file(work: Path, node: int) -> Path:
    """Return the file of ``work`` in which the ranks on ``node`` record their progress."""
    return work / (f"pulse_{node}.bin" if node else "pulse.bin")


def weights_folder(work: Path) -> Path:
    """Return the folder of the final weights in ``work``."""
    return work / "weights"


def weights_part(folder: Path, part: int) -> Path:
    """Return file number ``part`` of the final weights in ``folder``."""
    return folder / f"part_{part}.safetensors"


def weights_parts(folder: Path) -> list[Path]:
    """Return the files of the final weights in ``folder``, sorted."""
    return sorted(folder.glob("part_*.safetensors"))


def checkpoints_folder(work: Path) -> Path:
    """Return the folder of the checkpoints in ``work``."""
    return work / "checkpoints"
