"""Memorise a growing share of the training samples until the target is reached."""

from __future__ import annotations

import os

from hybridperf.run.timed_run import TimedRun
from tests.trainers.nearest.memory import SHARES, Memory

if __name__ == "__main__":
    memory, rank = Memory(), int(os.environ.get("RANK", "0"))
    with TimedRun.join() as run:
        with run.clock():
            for block in run.blocks():
                data = run.training_data(block)
                for _ in data.batches():
                    pass
                count = round(SHARES[min(block.last, len(SHARES)) - 1] * len(data.samples))
                memory.fill(data.samples.inputs[:count], data.samples.labels[:count])
                held_out = run.evaluation_data()
                for share in held_out.chunks(rank, run.plan.ranks, len(held_out)):
                    held_out.predict(share, memory.answer(held_out.inputs[share]))
                run.report()
        memory.save(run.work)
