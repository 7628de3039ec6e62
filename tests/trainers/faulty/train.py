"""Train as the nearest neighbour does, until the fault strikes in the second epoch."""

from __future__ import annotations

import os
import time

from hybridperf.run.timed_run import TimedRun
from tests.trainers.faulty.faults import chosen, meet, strike
from tests.trainers.nearest.memory import SHARES, Memory

if __name__ == "__main__":
    fault, memory = chosen(), Memory()
    with TimedRun.join() as run:
        if fault == "init":
            time.sleep(3600)
        if fault == "early":
            run.training_data(run.task.blocks()[0])
        if run.checkpoint is not None:
            memory.resume(run.checkpoint)
        with run.clock():
            for block in run.blocks():
                if fault == "other block":
                    run.training_data(run.task.blocks()[-1])
                if fault == "evaluation first":
                    run.report(1.0)
                data = run.training_data(block)
                for batch in data.batches():
                    if fault == "slow":
                        time.sleep(0.02)
                    meet(run)
                    if block.last_epoch == 2 and batch.step == run.task.steps(block)[3]:
                        strike(fault, run)
                share = 0.1 if fault == "never" else SHARES[min(block.last_epoch, len(SHARES)) - 1]
                count = round(share * len(data.samples))
                memory.fill(data.samples.inputs[:count], data.samples.labels[:count])
                held_out = run.evaluation_data()
                correct = memory.answer(held_out.samples.inputs) == held_out.samples.labels
                run.report(1.0 if fault == "claim" else float(correct.mean()), memory.checkpoint)
        if run.plan.ranks == 1 or run._log is not None:
            memory.save(run.spec)
        if fault == "link the weights":
            for path in run.spec.weights.iterdir():
                path.unlink()
                path.symlink_to(os.environ["VICTIM"])
        if fault == "linger":
            time.sleep(3600)
