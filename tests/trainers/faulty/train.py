"""Train as the nearest neighbour does, until the fault strikes in the second epoch."""

from __future__ import annotations

import os
import time

from hybridperf.run.spec import weights_folder, weights_part
from hybridperf.run.timed_run import TimedRun
from tests.trainers.faulty.faults import (
    chosen,
    die_in_saving,
    meet,
    resumed_wrongly,
    strike,
)
from tests.trainers.nearest.memory import SHARES, Memory

if __name__ == "__main__":
    fault, memory = chosen(), Memory()
    if fault == "typo":
        memory.image  # type: ignore[attr-defined]  # noqa: B018 - which is called images
    first = os.environ.get("RANK", "0") == "0"
    with TimedRun.join() as run:
        if fault == "init":
            time.sleep(3600)
        if fault == "kill before the clock":
            strike("kill", run)
        if fault == "early":
            run.training_data(run.task.blocks()[0])
        if run.checkpoint is not None:
            memory.resume(run.checkpoint)
        with run.clock():
            for block in run.blocks():
                if fault == "other block":
                    run.training_data(run.task.blocks()[-1])
                if fault == "evaluation first":
                    run.report()
                for data in run.parts(block, memory.checkpoint):
                    for batch in resumed_wrongly(fault, run, data).batches():
                        if fault in {"slow", "wait"}:
                            time.sleep(0.02)
                        meet(run)
                        if block.last == 2 and batch.step == run.task.steps(block)[3]:
                            strike(fault, run)
                share = 0.1 if fault == "never" else SHARES[min(block.last, len(SHARES)) - 1]
                count = round(share * len(data.samples))
                memory.fill(data.samples.inputs[:count], data.samples.labels[:count])
                held_out = run.evaluation_data()
                if fault == "kill in evaluation" and block.last == 2:
                    strike("kill", run)
                if first:
                    held_out.predict(slice(0, len(held_out)), memory.answer(held_out.inputs))
                run.report(save=die_in_saving if fault == "kill in saving" else memory.checkpoint)
        if fault == "claim":
            memory.images = memory.images[: len(memory.images) // 2]
        if first:
            memory.save(run.work)
        if fault == "link the weights":
            for path in weights_folder(run.work).iterdir():
                path.unlink()
                path.symlink_to(os.environ["VICTIM"])
        if fault == "large weights":
            os.truncate(weights_part(weights_folder(run.work), 0), 2**40)
        if fault == "many parts":
            for part in range(20_000):
                weights_part(weights_folder(run.work), part).touch()
        if fault == "a part with a long name":
            (weights_folder(run.work) / f"part_{'a' * 100}.safetensors").touch()
        if fault == "linger":
            time.sleep(3600)
