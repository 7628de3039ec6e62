"""What goes wrong, on which rank, and whether it does so once only."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import signal
import sys
import time
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import TYPE_CHECKING

from hybridperf.run.processes import read_pulse

if TYPE_CHECKING:
    from hybridperf.run.access import TrainingData
    from hybridperf.run.timed_run import TimedRun

__all__ = [
    "HOUR_MS",
    "Boom",
    "chosen",
    "die_in_saving",
    "meet",
    "resumed_wrongly",
    "strike",
]

HOUR_MS = 3_600_000


class Boom(Exception):  # noqa: N818 - a trainer may call its exceptions as it likes
    """What a trainer raises."""


def chosen() -> str:
    """Return the fault of this process, or nothing where it has none or had it before."""
    fault = os.environ.get("FAULT", "")
    if not fault or os.environ.get("RANK", "0") != os.environ.get("FAULT_RANK", "0"):
        return ""
    if once := os.environ.get("FAULT_ONCE"):
        if Path(once).read_text():
            return ""
        Path(once).write_text(fault)
    return fault


def strike(fault: str, run: TimedRun) -> None:
    """Let ``fault`` happen, in the middle of training."""
    if fault == "kill" or (fault.startswith("kill, then") and run.checkpoint is None):
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "hang":
        time.sleep(3600)
    elif fault == "wait":
        while not Path(os.environ["SEEN"]).read_text():
            time.sleep(0.01)
    elif fault == "raise":
        raise Boom("the loss is not a number")
    elif fault == "leave":
        sys.exit(0)
    elif fault == "fill the disk":
        with (run.work / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    elif fault == "deep folder":
        folder = os.open(run.work, os.O_RDONLY)
        for _ in range(2500):
            os.mkdir("aa", dir_fd=folder)
            inner = os.open("aa", os.O_RDONLY, dir_fd=folder)
            os.close(folder)
            folder = inner
        os.close(os.open("file", os.O_CREAT, dir_fd=folder))
    elif fault == "share memory":
        memory = SharedMemory(create=True, size=2**23)
        assert memory.buf is not None
        memory.buf[:] = bytes(len(memory.buf))
        memory.unlink()
    elif fault == "blame the machine":
        sys.stderr.write("First failure: rank 0, exit status -7\n")
        raise Boom("DataLoader worker (pid 7) is killed by signal: Bus error. Out of shared memory")
    elif fault == "link the log":
        (run.work.parent / "log.txt").unlink()
        (run.work.parent / "log.txt").symlink_to(os.environ["VICTIM"])
    elif fault == "pipe for a log":
        (run.work.parent / "log.txt").unlink()
        os.mkfifo(run.work.parent / "log.txt")
    elif fault == "pipe for the output":
        (run.work.parent / "output.txt").unlink()
        os.mkfifo(run.work.parent / "output.txt")
    elif fault == "forge files":
        text = json.dumps({"reported": 1.0, "quality": 1.0, "tolerance": 0.01, "problem": ""})
        (run.work.parent / "rescoring.json").write_text(text)
        order = run.work.parent / "run.json"
        forged = json.loads(order.read_text()) | {"seed": 1, "plan": "dp=8"}
        order.write_text(json.dumps(forged))
        ending = {"outcome": "success", "reason": "", "initialisation_s": 0.1, "run_s": 98765}
        (run.work.parent / "ending.json").write_text(json.dumps(ending))
    elif fault == "edit what is sealed":
        result = run.work.parents[1]
        log, sums = result / "result_0.txt", result / "SHA256SUMS"
        before = hashlib.sha256(log.read_bytes()).hexdigest()
        log.write_text(log.read_text().replace("success", "aborted"))
        after = hashlib.sha256(log.read_bytes()).hexdigest()
        sums.write_text(sums.read_text().replace(before, after))
    elif fault == "tell secrets":
        raise Boom(f"no file {os.environ['VICTIM']} with password hunter2")
    elif fault == "wall clock":
        behind_s = time.time() - HOUR_MS / 1000
        time.time = lambda: behind_s
        time.time_ns = lambda: int(behind_s * 1e9)


def meet(run: TimedRun) -> None:
    """Wait until every rank has come as far as this one, as a collective would."""
    ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    while True:
        nodes = [read_pulse(path, ranks) for path in run.work.glob("pulse*.bin")]
        counts = [max(each) for each in zip(*nodes, strict=True)]
        if min(counts) >= counts[rank]:
            return
        time.sleep(0.001)


def die_in_saving(folder: Path) -> None:
    """Write half of the checkpoint, and be killed."""
    folder.mkdir()
    (folder / "count.txt").touch()
    os.kill(os.getpid(), signal.SIGKILL)


def resumed_wrongly(fault: str, run: TimedRun, data: TrainingData) -> TrainingData:
    """Return ``data`` with a batch too few or too many, where it is the first of a resumed run."""
    name = run.checkpoint.name if run.checkpoint is not None else ""
    if name != f"step_{data.steps.start}":
        return data
    shift = {"kill, then skip": 1, "kill, then repeat": -1}.get(fault, 0)
    return dataclasses.replace(data, part=range(data.steps.start + shift, data.steps.stop))
