"""Train as the nearest neighbour does, and try the rest while the clock runs."""

from __future__ import annotations

import json
import os
from itertools import islice
from pathlib import Path

from hybridperf.run.timed_run import TimedRun
from hybridperf.tasks.data import load
from tests.trainers.cheat.attempts import try_all
from tests.trainers.nearest.memory import SHARES, Memory

if __name__ == "__main__":
    memory, cheat = Memory(), os.environ.get("CHEAT", "")
    rank, cheats = os.environ.get("RANK", "0"), os.environ.get("FAULT_RANK") or "0"
    with TimedRun.join() as run:
        if cheat == "trains before the clock" and rank == cheats:
            known = load(run.task.data).train
            memory.fill(known.inputs, known.labels)
        with run.clock():
            for block in run.blocks():
                data = run.training_data(block)
                steps = len(run.task.steps(block))
                for batch in islice(data.batches(), steps // 2 if "half" in cheat else steps):
                    assert len(batch.indices)
                count = round(SHARES[min(block.last, len(SHARES)) - 1] * len(data.samples))
                memory.fill(data.samples.inputs[:count], data.samples.labels[:count])
                if cheat == "tries everything" and block.last == 1:
                    Path(os.environ["FAULT_ONCE"]).write_text(json.dumps(try_all()))
                held_out = run.evaluation_data()
                if cheat == "stops after one epoch":
                    run.report()  # with no prediction at all
                classes = memory.answer(held_out.inputs)
                if rank == "0":
                    held_out.predict(slice(0, len(held_out)), classes)
                run.report()
        if cheat == "trains after the clock":
            memory.labels = (memory.labels + 1) % 10
        if cheat == "saves another model":
            half = len(data.samples) // 2
            memory.fill(data.samples.inputs[half:], data.samples.labels[half:])
        if rank == "0":
            memory.save(run.work)
        if cheat == "a pipe for weights":
            path = run.work / "weights/part_0.safetensors"
            path.unlink()
            os.mkfifo(path)
