"""Answer from what was memorised, or fail to."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

from hybridperf.run.prediction import PREDICTIONS, Prediction
from hybridperf.run.spec import RunSpec
from tests.trainers.faulty.faults import Boom, chosen
from tests.trainers.nearest.memory import Memory

if __name__ == "__main__":
    prediction, spec, memory = Prediction.join(), RunSpec.from_environment(), Memory()
    fault = chosen()
    if fault == "predict raises":
        raise Boom("no such layer")
    if fault == "predict hangs":
        time.sleep(3600)
    if fault == "predict waits":
        while not Path(os.environ["SEEN"]).read_text():
            time.sleep(0.01)
    if fault == "predict runs itself again":
        sleep = "import time; time.sleep(3600)"
        os.execve(sys.executable, [sys.executable, "-c", sleep], {})
    if fault == "predict leaves a daemon" and os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            sleep = (
                "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); "
                "time.sleep(3600)"
            )
            os.execve(sys.executable, [sys.executable, "-c", sleep, os.environ["DAEMON"]], {})
        os._exit(0)
    if fault == "predict leaves a daemon":
        while not Path(os.environ["DAEMON"]).read_text():
            time.sleep(0.01)
    if fault == "predict answers nothing":
        sys.exit(0)
    if fault == "predict answers an empty file":
        (spec.scoring / PREDICTIONS).touch()
        sys.exit(0)
    memory.load(spec)
    classes = memory.answer(prediction.inputs())
    if fault == "predict answers too few":
        classes = classes[:-1]
    if fault == "predict answers words":
        np.save(spec.scoring / PREDICTIONS, classes.astype(str))
        sys.exit(0)
    prediction.answer(classes)
