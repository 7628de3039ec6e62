"""A made-up submission to a round of MLPerf: complete, and right by every rule of mode strict."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from hybridperf.rules.check import check_path
from hybridperf.rules.mlperf.ruleset import load_ruleset
from tests.rules.mlperf.strict_logs import RULESET, resnet, value, write

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.findings import Finding
    from hybridperf.score.rcp import RcpSets
    from tests.rules.mlperf.strict_logs import Lines

ORG: Final = "acme"
SYSTEM: Final = "pod_n128_mxnet"
SYSTEM_FILE: Final = f"{ORG}/systems/{SYSTEM}.json"
RESULT: Final = f"{ORG}/results/{SYSTEM}/resnet"
SCRIPTS: Final = f"{ORG}/benchmarks/resnet/{SYSTEM}"
RUNS: Final = 5


def write_submission(root: Path, **facts: object) -> Path:
    """Write five runs of ResNet, their code and a description with ``facts``; return ``root``."""
    files = {
        f"{ORG}/benchmarks/resnet/implementations/mxnet/train.py": "",
        **{f"{SCRIPTS}/{name}": "" for name in ("README.md", "setup.sh", "init_datasets.sh")},
        f"{SCRIPTS}/run_and_time.sh": "",
        f"{SCRIPTS}/{SYSTEM}_mxnet.json": "{}",
        SYSTEM_FILE: json.dumps(description(**facts)),
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / RESULT).mkdir(parents=True)
    for number in range(RUNS):
        write(root / RESULT / f"result_{number}.txt", run(number))
    return root


def description(**facts: object) -> dict[str, Any]:
    """Return a description with something in every field."""
    fields = load_ruleset(RULESET).rules["system.fields"]["fields"]
    return dict.fromkeys(fields, "as usual") | {
        "submitter": ORG,
        "division": "closed",
        "status": "onprem",
        "number_of_nodes": "128",
        "host_processors_per_node": 2,
        "host_processor_core_count": "64",
        "host_processor_vcpu_count": "",
        "accelerators_per_node": "8",
        "accelerator_model_name": "NVIDIA H100-SXM5-80GB",
        **facts,
    }


def run(number: int) -> Lines:
    """Return one run's log, an hour after the one before."""
    lines = resnet()
    value("submission_org", ORG)(lines)
    value("submission_platform", "128xpod")(lines)
    value("seed", 1000 + number)(lines)
    for each in lines:
        each["time_ms"] += number * 3_600_000
    return lines


def findings(
    path: Path, ruleset: str | Path = RULESET, references: RcpSets | None = None
) -> list[Finding]:
    return list(check_path(path, ruleset, "strict", references=references).findings)
