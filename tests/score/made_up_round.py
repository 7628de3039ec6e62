"""Made-up logs in MLPerf's published layout."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from hybridperf.findings import Finding
from hybridperf.rules.mlperf.ruleset import Ruleset, load_ruleset
from hybridperf.rules.verdict import RULESET as OURS
from hybridperf.score.run_score import stopped_well

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest

    from hybridperf.log.log import Log

RULESET: Final = "mlperf-training-2.1.0"
START_MS: Final = 1_650_000_000_000
BATCH: Final = 448


def line(key: str, value: object = None, time_s: float = 0.0, **metadata: object) -> str:
    entry = {
        "namespace": "",
        "time_ms": START_MS + round(time_s * 1000),
        "event_type": "POINT_IN_TIME",
        "key": key,
        "value": value,
        "metadata": {"file": "train.py", "lineno": 1, **metadata},
    }
    return f":::MLLOG {json.dumps(entry)}"


def log_lines(time_s: float, *, status: str = "success", samples: int = 2_500_000) -> list[str]:
    return [
        line("submission_benchmark", "bert"),
        line("submission_division", "closed"),
        line("global_batch_size", BATCH),
        line("run_start"),
        line("eval_accuracy", 0.5, time_s / 2, epoch_num=samples // 2),
        line("eval_accuracy", 0.73, time_s, epoch_num=samples),
        line("train_samples", samples, time_s),
        line("run_stop", None, time_s, status=status),
    ]


def write_round(
    root: Path,
    logs: Sequence[Sequence[str]],
    *,
    org: str = "acme",
    system: str = "eight",
    facts: dict[str, Any] | None = None,
) -> Path:
    """Write one result of BERT; return its folder."""
    folder = root / org / "results" / system / "bert"
    folder.mkdir(parents=True)
    for number, lines in enumerate(logs):
        (folder / f"result_{number}.txt").write_text("\n".join(lines) + "\n")
    systems = root / org / "systems"
    systems.mkdir(exist_ok=True)
    facts = facts or {"division": "closed", "number_of_nodes": "2", "accelerators_per_node": 4}
    (systems / f"{system}.json").write_text(json.dumps(facts))
    return folder


def judge_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the rules of any round find in a made-up log only whether it reached the target."""

    def judge(log: Log, _: Ruleset) -> list[Finding]:
        if stopped_well(log) or log.findings:
            return log.findings
        return [Finding("mlperf.target", "the target", "less", "train on", log.path)]

    judged = "hybridperf.report.judgement"
    names = [f"mlperf-training-{edition}.0" for edition in ("4.1", "8.0", "9.0")]
    monkeypatch.setattr("hybridperf.rules.check.check_as_published", judge)
    monkeypatch.setattr(f"{judged}.known_rulesets", lambda: [RULESET, *names])
    monkeypatch.setattr(
        "hybridperf.rules.check.load_ruleset",
        lambda source: load_ruleset(source if source == OURS else RULESET),
    )
