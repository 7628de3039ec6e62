"""What the rules of folders, descriptions, places and plausibility find in MLPerf's own rounds.

None of it is an error. The data are an excerpt: logs of BERT and ResNet, and all descriptions.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from hybridperf.findings import Finding, Severity
from hybridperf.rules.check import check_path
from hybridperf.rules.rule import RULES
from tests.rules.mlperf.strict_logs import RULESET, place, read_lines, write
from tests.score.rounds import NEEDS_DATA, unpack

pytestmark = NEEDS_DATA

FAMILIES = {"package", "system", "place", "plausible"}
OURS = {name for name in RULES if name.partition(".")[0] in FAMILIES}
BAIDU = "training_results_v2.1/Baidu"


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("rounds"))


@pytest.fixture(scope="module")
def findings(rounds: Path) -> list[Finding]:
    return _check(rounds)


def _check(path: Path) -> list[Finding]:
    found = check_path(path, RULESET, "strict").findings
    return [each for each in found if each.rule in OURS]


def test_the_rounds_have_these_findings_and_no_others(findings: list[Finding]) -> None:
    counts = Counter((each.rule, each.path.split("/")[0][-4:]) for each in findings)

    assert counts == {
        ("package.code", "v2.0"): 4,  # once for every organisation: an excerpt has no code
        ("package.code", "v2.1"): 11,
        ("package.unused", "v2.0"): 3,  # once for every organisation: other benchmarks' systems
        ("package.unused", "v2.1"): 4,
        ("system.meaning", "v2.0"): 15,
        ("system.meaning", "v2.1"): 46,
        ("place.division", "v2.1"): 10,
        ("place.organisation", "v2.1"): 4,
        ("place.platform", "v2.1"): 8,
        ("place.status", "v2.1"): 8,
    }
    assert {each.severity for each in findings} == {Severity.WARNING}


@pytest.mark.parametrize(
    ("rule", "results"),
    [
        ("place.division", {"Intel/16-nodes-SPR-pytorch-open/bert"}),
        (
            "place.organisation",
            {
                f"Intel-HabanaLabs/HLS-Gaudi2-{framework}/{benchmark}"
                for framework in ("PT", "TF")
                for benchmark in ("bert", "resnet")
            },
        ),
        (
            "place.status",
            {
                "Intel/8-nodes-SPR-pytorch/bert",
                "Intel/16-nodes-SPR-pytorch/bert",
                "Intel/16-nodes-SPR-pytorch/resnet",
                "Intel/16-nodes-SPR-pytorch-open/bert",
                "NVIDIA/dgxh100_preview/bert",
                "NVIDIA/dgxh100_preview/resnet",
                "NVIDIA/dgxh100_n4_preview/bert",
                "NVIDIA/dgxh100_n4_preview/resnet",
            },
        ),
        (
            "place.platform",
            {
                "Azure/ND96amsr_A100_v4_n8_mxnet/resnet",
                "Krai/7920T_2xA5000_mxnet22.04/resnet",
                "Krai/7920T_2xA5000_mxnet22.08/resnet",
                *(
                    f"HPE/HPE-ProLiant-XL675d-Gen10-Plus_A100-SXM-80GB_{nodes}pytorch/bert"
                    for nodes in ("", "2N_", "4N_", "8N_", "16N_")
                ),
            },
        ),
    ],
)
def test_irregularities_are_found_by_name(
    findings: list[Finding], rule: str, results: set[str]
) -> None:
    parts = [each.path.split("/") for each in findings if each.rule == rule]

    assert {f"{org}/{system}/{bm}" for _, org, _, system, bm, *_ in parts} == results


@pytest.mark.parametrize("faster", [1, 3, 100])
def test_a_log_made_faster_is_found(rounds: Path, tmp_path: Path, faster: int) -> None:
    root = Path(shutil.copytree(rounds / BAIDU, tmp_path / "round" / "Baidu"))
    path = root / "results" / "8_node_64_A100_PaddlePaddle" / "bert" / "result_3.txt"
    lines = read_lines(path)
    start, stop = lines[place(lines, "run_start")], lines[place(lines, "run_stop")]
    stop["time_ms"] = start["time_ms"] + (stop["time_ms"] - start["time_ms"]) // faster
    write(path, lines)

    found = [each for each in _check(root.parent) if each.rule == "plausible.throughput"]

    assert [each.severity for each in found] == ([Severity.ERROR] if faster > 1 else [])
    assert all(each.path.endswith("bert/result_3.txt") for each in found)


def test_a_log_of_the_open_division_in_a_closed_result_is_an_error(
    rounds: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(rounds / BAIDU, tmp_path / "round" / "Baidu"))
    path = root / "results" / "8_node_64_A100_PaddlePaddle" / "bert" / "result_3.txt"
    path.write_text(path.read_text().replace('"closed"', '"open"'))

    found = [each for each in _check(root.parent) if each.severity is Severity.ERROR]

    assert [each.rule for each in found] == ["place.division"]


def test_another_count_of_accelerators_is_found(rounds: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(rounds / BAIDU, tmp_path / "round" / "Baidu"))
    path = root / "systems" / "8_node_64_A100_PaddlePaddle.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"number_of_nodes": "4"}))

    rules = {each.rule for each in _check(root.parent)}

    assert {"system.counts", "place.platform"} <= rules
