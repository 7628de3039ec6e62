from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.log import keys
from hybridperf.log.writer import LogClock, LogWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from hybridperf.findings import Finding
    from hybridperf.log.package import Result

TASK = "resnet/laptop"
SAMPLES_PER_EPOCH = 1195
SYSTEM = {
    "number_of_nodes": "1",
    "host_processors_per_node": "1",
    "host_processor_core_count": "2",
    "host_processor_model_name": "EPYC",
    "accelerators_per_node": "0",
    "framework": "PyTorch 2.15",
}


@dataclass(frozen=True, slots=True)
class MadeUpClock(LogClock):
    """A clock that stands still until it is told to go on."""

    elapsed_ms: list[float] = field(default_factory=lambda: [1_790_000_000_000.0])

    def now_ms(self) -> int:
        return round(self.elapsed_ms[0])

    def advance(self, time_s: float) -> None:
        self.elapsed_ms[0] += time_s * 1000


@dataclass(frozen=True, slots=True)
class Submissions:
    """Writes submissions with made-up times under ``root``."""

    root: Path

    def add(
        self,
        times_s: list[float],
        *,
        org: str = "acme",
        system: str = "laptop",
        task: str = TASK,
        plan: str = "dp=2",
        epochs: int = 8,
        outcomes: dict[int, str] | None = None,
        manifest: dict[str, Any] | None = None,
        description: dict[str, Any] | None = None,
        rates: dict[str, float] | None = None,
    ) -> Path:
        """Write a result; run n takes ``times_s[n - 1]`` and ends as ``outcomes`` says."""
        folder = self.root / org / "results" / system / "resnet-laptop"
        folder.mkdir(parents=True)
        systems = self.root / org / "systems"
        systems.mkdir(exist_ok=True)
        (systems / f"{system}.json").write_text(json.dumps(description or SYSTEM))
        for number, time_s in enumerate(times_s, start=1):
            outcome = (outcomes or {}).get(number, "success")
            path = folder / f"result_{number}.txt"
            self._log(path, time_s, task, plan, epochs, outcome, org, rates or {})
            facts = self._manifest(number, outcome, task, plan, org) | (manifest or {})
            (folder / f"result_{number}.json").write_text(json.dumps(facts))
        return folder

    def _log(
        self,
        path: Path,
        time_s: float,
        task: str,
        plan: str,
        epochs: int,
        outcome: str,
        org: str,
        rates: dict[str, float],
    ) -> None:
        clock = MadeUpClock(wall_ms=0, monotonic_ns=0)
        with LogWriter(path, clock) as log:
            log.point(keys.SUBMISSION_BENCHMARK, task)
            log.point(keys.SUBMISSION_ORG, org)
            log.point(keys.SUBMISSION_DIVISION, "closed")
            log.point(keys.PLAN, plan)
            log.point(keys.GLOBAL_BATCH_SIZE, 32)
            log.point(keys.TRAIN_SAMPLES, 1195)
            log.point(keys.SEED, 1234)
            log.start(keys.RUN_START)
            for epoch in range(1, epochs + 1):
                log.start(keys.BLOCK_START, first_epoch_num=epoch, epoch_count=1)
                clock.advance(time_s / epochs * 0.9)
                rate = SAMPLES_PER_EPOCH / (time_s / epochs * 0.9)
                log.point(keys.TRACKED_STATS, {"throughput": rate}, epoch_num=epoch)
                log.start(keys.EVAL_START, epoch_num=epoch)
                clock.advance(time_s / epochs * 0.1)
                log.stop(keys.EVAL_STOP, epoch_num=epoch)
                shares = {"bubble": 0.1, "exposed_communication": 0.05}
                log.point(keys.TRACKED_STATS, shares | rates, epoch_num=epoch)
                log.point(keys.EVAL_ACCURACY, 1 - 0.6 * 0.66**epoch, epoch_num=epoch)
                if outcome == "interrupted" and epoch == epochs // 2:
                    log.point(keys.ENDING, "interrupted")
                    return
            log.stop(keys.RUN_STOP, status="success" if outcome == "success" else "aborted")

    @staticmethod
    def _manifest(number: int, outcome: str, task: str, plan: str, org: str) -> dict[str, Any]:
        return {
            "format": 1,
            "attempt": number,
            "outcome": outcome,
            "reason": "" if outcome == "success" else f"it was {outcome}",
            "task": {
                "name": task,
                "version": 1,
                "sha256": "a" * 64,
                "target": 0.98,
                "metric": "top-1 accuracy",
                "runs": 5,
            },
            "plan": plan,
            "seed": 1234,
            "division": "closed",
            "org": org,
            "log": {"path": f"result_{number}.txt", "sha256": f"{number}" * 64},
            "code": {"version": "0.1", "suite_sha256": "b" * 64, "trainer_sha256": "c" * 64},
            "data_sha256": "d" * 64,
            "rescoring": {"quality": 0.9801, "reported": 0.9817, "tolerance": 0.0034},
            "command": f"hybridperf run {task} --plan {plan} --runs 5",
        }


@pytest.fixture
def submissions(tmp_path: Path) -> Submissions:
    return Submissions(tmp_path / "submissions")


def judge_by(monkeypatch: pytest.MonkeyPatch, check: Callable[[Result], Iterable[Finding]]) -> None:
    """Let the report find in a result what ``check`` does, and nothing else."""
    monkeypatch.setattr(
        "hybridperf.rules.check.check_result", lambda result, _: list(check(result))
    )
    # Made-up runs take equal times, so that results would be copies of each other.
    monkeypatch.setattr("hybridperf.rules.check.traces_of", lambda *_, **__: [])


@pytest.fixture(autouse=True)
def all_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up logs lack much that the rules ask for, and the report is not where that matters."""
    judge_by(monkeypatch, lambda result: result.findings)
