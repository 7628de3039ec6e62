"""Made-up submissions: valid as written, and then changed one thing at a time."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from zlib import crc32

from hybridperf.log import keys
from hybridperf.log.chain import GENESIS, SUMS, format_sums, seal_line, split_line
from hybridperf.log.package import Package, result_names
from hybridperf.log.writer import TOKEN, LogClock, LogWriter
from hybridperf.rules.mlperf.ruleset import load_ruleset
from hybridperf.run.attempt import write_head
from hybridperf.run.spec import RunSpec
from hybridperf.score.validity import Judgement, Validity
from hybridperf.tasks.registry import task_path
from hybridperf.tasks.task import Block

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from hybridperf.tasks.task import Division

    Edit = Callable[[list[str]], object]

TASK = "resnet/laptop"
EPOCHS = 8  #: after so many a made-up run reaches the target
START_MS = 1_790_000_000_000
DAY_MS = 86_400_000  #: from the start of one run to that of the next
VALID = Validity(Judgement.VALID)  #: what the rules say of a result where that is no matter
RATE, BUBBLE, EXPOSED = 900.0, 0.1, 0.05
#: what every made-up block tracks; the rate is not that of its clock


@dataclass(frozen=True, slots=True)
class MadeUpClock(LogClock):
    """A clock that stands still until it is told to go on."""

    time_ms: list[float] = field(default_factory=lambda: [float(START_MS)])

    def now_ms(self) -> int:
        return round(self.time_ms[0])

    def advance(self, time_s: float) -> None:
        self.time_ms[0] += time_s * 1000


def write_result(
    root: Path,
    *,
    plan: str = "dp=2",
    times_s: Sequence[float] = (10.0, 11.0, 12.0, 13.0, 14.0),
    missed: Collection[int] = (),
    ended: Collection[int] = (),
    org: str = "acme",
    system: str = "laptop",
    division: Division = "closed",
    overrides: dict[str, object] | None = None,
    task: str = TASK,
    epochs: int = EPOCHS,
) -> Package:
    """Write a valid result of one run for each of ``times_s``; `missed` and `ended` are numbers."""
    package = Package(root.resolve(), org, system, task.replace("/", "-"))
    package.folder.mkdir(parents=True)
    package.system_file.parent.mkdir(exist_ok=True)
    package.system_file.write_text(json.dumps(description(org, system, division)))
    for number, time_s in enumerate(times_s):
        spec = RunSpec(
            folder=str(package.folder),
            attempt=number,
            task_path=str(task_path(task)),
            trainer="hybridperf_reference",
            overrides=overrides or {},
            plan=plan,
            seed=1000 + number,
            org=org,
            platform=system,
            division=division,
            clock=MadeUpClock(0, 0, [float(START_MS + number * DAY_MS)]),
        )
        outcome = "interrupted" if number in ended else "success"
        outcome = "target_missed" if number in missed else outcome
        quality = _write_log(spec, time_s, outcome, epochs)
        text, manifest = (package.folder / name for name in result_names(number))
        spec.log.rename(text)
        facts = _manifest(spec, package, time_s, outcome, quality)
        manifest.write_text(json.dumps(facts, indent=2))
    seal(root)
    return package


def description(org: str, system: str, division: str = "closed") -> dict[str, object]:
    """Return a system's description as the harness writes it."""
    filled = {
        "submitter": org,
        "division": division,
        "status": "onprem",
        "system_name": system,
        "number_of_nodes": "1",
        "accelerators_per_node": "0",
        "framework": "PyTorch 2.15",
        "operating_system": "Debian GNU/Linux 12",
    }
    ruleset = load_ruleset("mlperf-training-2.1.0")
    fields: list[str] = ruleset.rules["system.fields"]["fields"]
    return {field: filled.get(field, "") for field in fields}


def seal(root: Path) -> None:
    """List the hashes of every result's files below ``root``, as they are now."""
    for folder in {log.parent for log in root.rglob("result_*.txt")}:
        files = [*folder.glob("result_*"), *folder.glob("predictions_*.npy")]
        text = format_sums({file.name: _sha256(file) for file in files if file.is_file()})
        (folder / SUMS).write_text(text)


def log_path(package: Package, number: int) -> Path:
    return package.folder / result_names(number)[0]


def edit_log(package: Package, number: int, edit: Edit) -> None:
    """Let ``edit`` change the JSON texts of a run's lines, then chain and seal them anew."""
    path = log_path(package, number)
    bodies = read_bodies(path)
    edit(bodies)
    path.write_text(chained(bodies))
    edit_manifest(package, number, log={"path": path.name, "sha256": _sha256(path)})


def edit_manifest(package: Package, number: int, **facts: object) -> None:
    """Replace ``facts`` of a run's manifest."""
    path = package.folder / result_names(number)[1]
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))


def read_bodies(path: Path) -> list[str]:
    """Return the JSON texts of the lines of a log, without their hashes."""
    parts = [split_line(line.removeprefix(TOKEN)) for line in path.read_text().splitlines()]
    return [part[0] for part in parts if part is not None]


def chained(bodies: Sequence[str]) -> str:
    """Return the log whose lines have the JSON texts ``bodies``."""
    lines, previous = [], GENESIS
    for body in bodies:
        line, previous = seal_line(previous, body)
        lines.append(f"{TOKEN}{line}\n")
    return "".join(lines)


def place(bodies: Sequence[str], key: str, nth: int = 0) -> int:
    """Return the index of the ``nth`` line with ``key``; -1 is the last."""
    return [index for index, body in enumerate(bodies) if json.loads(body)["key"] == key][nth]


def change(bodies: list[str], key: str, nth: int = 0, **fields: object) -> None:
    """Replace ``fields`` of the ``nth`` line with ``key``."""
    index = place(bodies, key, nth)
    bodies[index] = json.dumps(json.loads(bodies[index]) | fields)


def shift(bodies: list[str], first: int, time_ms: int) -> None:
    """Stamp the line ``first`` and all after it ``time_ms`` later."""
    for index in range(first, len(bodies)):
        entry = json.loads(bodies[index])
        bodies[index] = json.dumps(entry | {"time_ms": entry["time_ms"] + time_ms})


def take_less_time(bodies: list[str], share: float) -> None:
    """Let the run take a ``share`` of its time."""
    first = place(bodies, keys.RUN_START)
    start_ms = json.loads(bodies[first])["time_ms"]
    for index in range(first, len(bodies)):
        entry = json.loads(bodies[index])
        time_ms = start_ms + round(share * (entry["time_ms"] - start_ms))
        bodies[index] = json.dumps(entry | {"time_ms": time_ms})


def _write_log(spec: RunSpec, time_s: float, outcome: str, epochs: int) -> float:
    task, clock = spec.task(), spec.clock
    assert isinstance(clock, MadeUpClock)
    epochs = epochs if outcome == "success" else task.limits.epochs
    write_head(spec)
    quality = 0.0
    words = f"{spec.org} {spec.platform} {task.name} {spec.plan} {spec.attempt} {outcome}"
    # Evaluations are late by so much of an epoch, as in no other run; the last ones are not.
    late = [
        crc32(f"{words} {nth}".encode(errors="surrogateescape")) % 1000 / 2000 for nth in range(3)
    ]
    late = [0.0, *late, 0.0] if epochs > 3 else []
    with LogWriter(spec.log, clock) as log:
        clock.advance(9.0)
        log.stop(keys.INIT_STOP)
        log.start(keys.RUN_START)
        for epoch in range(1, epochs + 1):
            log.start(keys.BLOCK_START, first_epoch_num=epoch, epoch_count=1)
            clock.advance(time_s / epochs)
            if epoch < len(late):
                clock.advance((late[epoch] - late[epoch - 1]) * time_s / epochs)
            if outcome == "interrupted" and epoch == 3:
                log.point(keys.ENDING, {"outcome": outcome, "reason": "stopped by SIGINT"})
                break
            shares = {"bubble": BUBBLE, "exposed_communication": EXPOSED}
            log.point(keys.TRACKED_STATS, shares, epoch_num=epoch)
            log.point(keys.TRACKED_STATS, {"throughput": RATE}, epoch_num=epoch)
            log.start(keys.EVAL_START, epoch_num=epoch)
            log.stop(keys.EVAL_STOP, epoch_num=epoch)
            best = task.quality.target + (0.002 if outcome == "success" else -0.005)
            quality = best - 0.01 * (epochs - epoch)
            log.point(keys.EVAL_ACCURACY, quality, epoch_num=epoch)
            steps = len(task.steps(Block(epoch, 1)))
            samples = steps * task.training.global_batch_size
            log.stop(keys.BLOCK_STOP, first_epoch_num=epoch, steps=steps, samples=samples)
        log.stop(keys.RUN_STOP, status="success" if outcome == "success" else "aborted")
    return quality


def _manifest(
    spec: RunSpec, package: Package, time_s: float, outcome: str, quality: float
) -> dict[str, Any]:
    task = spec.task()
    rescoring = {"problem": "", "quality": quality, "reported": quality, "tolerance": 0.0034}
    path = log_path(package, spec.attempt)
    return {
        "format": 1,
        "attempt": spec.attempt,
        "outcome": outcome,
        "reason": "",
        "task": {
            "name": task.name,
            "version": task.version,
            "sha256": task.sha256,
            "metric": task.quality.metric,
            "target": task.quality.target,
            "runs": task.runs.count,
        },
        "plan": spec.plan,
        "seed": spec.seed,
        "overrides": spec.overrides,
        "org": spec.org,
        "platform": spec.platform,
        "division": spec.division,
        "mode": spec.mode,
        "sandbox": spec.sandbox,
        "log": {"path": path.name, "sha256": _sha256(path)},
        "system": {"path": package.system_file.name, "sha256": _sha256(package.system_file)},
        "code": {"version": "0.1.0", "suite_sha256": "a" * 64, "trainer_sha256": "b" * 64},
        "data_sha256": task.data.sha256,
        "supervisor": {"initialisation_s": 9.0, "run_s": time_s},
        "rescoring": None if outcome == "interrupted" else rescoring,
        "weights_sha256": {"part_0.safetensors": _sha256(path)},
        "command": "hybridperf run resnet/laptop --plan dp=2 --runs 5",
    }


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
