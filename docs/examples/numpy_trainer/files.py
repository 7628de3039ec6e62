"""The files through which harness and trainer speak: no module of the harness is needed."""

from __future__ import annotations

import hashlib
import json
import os
import time
import tomllib
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(os.environ["HYBRIDPERF_RUN"]).parent
ORDER: Final[dict[str, Any]] = json.loads((FOLDER / "run.json").read_text())
TASK: Final = tomllib.loads((FOLDER / ORDER["task_path"]).read_text())
WEIGHTS: Final = FOLDER / "work" / "weights" / "part_0.safetensors"
ANSWER: Final = FOLDER / "scoring" / "predictions.npy"


class Log:
    """Go on with the log whose head the harness wrote."""

    def __init__(self) -> None:
        self._file = (FOLDER / "log.txt").open("r+")
        head = [json.loads(line.removeprefix(":::MLLOG ")) for line in self._file]
        self.facts: dict[str, Any] = {entry["key"]: entry["value"] for entry in head}
        self._hash: str = head[-1]["sha256"]

    def write(self, event: str, key: str, value: object = None, **metadata: object) -> None:
        """Append a line with the hash of the one before and of itself."""
        clock = ORDER["clock"]
        passed_ms = (time.monotonic_ns() - clock["monotonic_ns"]) // 1_000_000
        entry = {"namespace": "", "time_ms": clock["wall_ms"] + passed_ms, "event_type": event}
        body = json.dumps(entry | {"key": key, "value": value, "metadata": metadata})
        self._hash = hashlib.sha256((self._hash + body).encode()).hexdigest()
        self._file.write(f':::MLLOG {body[:-1]}, "sha256": "{self._hash}"}}\n')
        self._file.flush()
