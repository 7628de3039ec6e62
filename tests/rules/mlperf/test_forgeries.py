"""Forged results of every benchmark that tracks statistics: what each lie is found by."""

from __future__ import annotations

import copy
import random
import shutil
from typing import TYPE_CHECKING

import pytest

from hybridperf.findings import Severity
from hybridperf.log.package import find_packages, read_package
from hybridperf.rules.check import check_result
from tests.rules.mlperf.published_rounds import published_rounds
from tests.rules.mlperf.strict_logs import Lines, read_lines, where, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HALVED, CUT, COPIED = "mlperf.rates", "mlperf.evaluation_time", "mlperf.twins"
#: a result of each benchmark that tracks statistics, and the rule that finds it out where all times
#: are halved, all evaluations are cut out, all runs are jittered copies of one, or the batch size
#: that is stated is doubled; "": none. DLRM and Minigo track something else than samples a second,
#: evaluations of Minigo and Stable Diffusion are not on the clock, and where a log does not count
#: steps a doubled batch contradicts nothing in it; the test of convergence finds most of those.
RESULTS = {
    "bert": ("v5.0/QCT/D74H-7U", (HALVED, CUT, COPIED, "")),
    "dlrm": ("v1.0/Supermicro/SYS-420GP-TNAR+", ("", CUT, COPIED, "")),
    "dlrm_dcnv2": ("v5.1/Dell/1xXE9680Lx8B200-SXM-180GB", (HALVED, CUT, COPIED, "")),
    "flux1": ("v5.1/Supermicro/ARS-121GL-NB3", (HALVED, CUT, COPIED, "mlperf.batch")),
    "gnn": ("v4.1/NVIDIA/h200_ngc24.04_dgl", (HALVED, CUT, COPIED, "")),
    "gpt3": ("v4.1/NVIDIA/b200_n8_preview_nemo", (HALVED, CUT, COPIED, HALVED)),
    "llama2_70b_lora": (
        "v5.1/AMD/MI325X_EPYC_9575F_pytorch_llama2_70b",
        (HALVED, CUT, COPIED, ""),
    ),
    "llama31_405b": (
        "v5.0/IBM+CoreWeave+NVIDIA/carina_ngpu512_ngc25.04_nemo",
        (HALVED, CUT, COPIED, HALVED),
    ),
    "llama31_8b": ("v5.1/AMD/MI350X_EPYC_9575F_pytorch", (HALVED, CUT, COPIED, "")),
    "maskrcnn": ("v3.1/GigaComputing/G593-ZD2_pytorch", (HALVED, CUT, COPIED, HALVED)),
    "minigo": ("v2.1/NVIDIA/dgxa100_ngc22.09_tensorflow", ("", "", COPIED, "")),
    "resnet": ("v3.0/GIGABYTE/G593-SD0_mxnet", (HALVED, CUT, COPIED, "mlperf.batch")),
    "retinanet": ("v5.1/GigaComputing/G894-AD1_pytorch", (HALVED, CUT, COPIED, "")),
    "rgat": ("v5.1/Dell/1xXE9680x8H200-SXM-141GB", (HALVED, CUT, COPIED, "")),
    "rnnt": ("v3.1/GigaComputing/G593-ZD2_pytorch", (HALVED, CUT, COPIED, "")),
    "ssd": ("v4.1/GigaComputing/G593-ZD1_pytorch", (HALVED, CUT, COPIED, "")),
    "stable_diffusion": ("v5.0/Dell/1xXE9712x4GB200", (HALVED, HALVED, COPIED, HALVED)),
    "unet3d": ("v4.0/GigaComputing/G593-SD1_mxnet", (HALVED, CUT, COPIED, "")),
}


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with published_rounds(tmp_path_factory) as folder:
        yield folder


def _halve_times(logs: list[Lines]) -> None:
    for lines in logs:
        start_ms = where(lines, "run_start")["time_ms"]
        for each in lines:
            if each["time_ms"] > start_ms:
                each["time_ms"] = start_ms + (each["time_ms"] - start_ms) // 2


def _cut_evaluations(logs: list[Lines]) -> None:
    for lines in logs:
        starts, stops = (
            [at for at, each in enumerate(lines) if each["key"] == key]
            for key in ("eval_start", "eval_stop")
        )
        for start, stop in zip(starts, stops, strict=False):
            start_ms = lines[start]["time_ms"]
            took_ms = lines[stop]["time_ms"] - start_ms
            for each in lines[start + 1 :]:
                each["time_ms"] = max(each["time_ms"] - took_ms, start_ms)


def _copy_one(logs: list[Lines]) -> None:
    """Make all runs of the first, with other seeds, and times and qualities a little off."""
    chosen, model = random.Random(5), logs[0]
    for number in range(1, len(logs)):
        made = copy.deepcopy(model)
        now_ms, before_ms = model[0]["time_ms"] + number * 10**8, model[0]["time_ms"]
        for each, like in zip(made, model, strict=True):
            now_ms += round((like["time_ms"] - before_ms) * chosen.uniform(0.98, 1.02))
            before_ms = like["time_ms"]
            each["time_ms"] = now_ms
            if each["key"] == "seed":
                each["value"] = chosen.randrange(2**31)
            if each["key"] == "eval_accuracy" and isinstance(each["value"], float):
                each["value"] += chosen.uniform(0, 1e-4)
        logs[number] = made


def _double_batch(logs: list[Lines]) -> None:
    for lines in logs:
        for each in lines:
            if each["key"] == "global_batch_size":
                each["value"] *= 2


def _errors(folder: Path, edition: str) -> set[str]:
    (package,) = find_packages(folder)
    ruleset = f"mlperf-training-{edition.removeprefix('v')}.0"
    found = check_result(read_package(package), ruleset)
    return {each.rule for each in found if each.severity is Severity.ERROR}


@pytest.mark.parametrize("trained", RESULTS)
def test_a_forged_result_contradicts_itself(rounds: Path, tmp_path: Path, trained: str) -> None:
    place, rules = RESULTS[trained]
    edition, org, system = place.split("/")
    source = rounds / f"training_results_{edition}" / org
    target = tmp_path / source.relative_to(rounds)
    folder = target / "results" / system / trained
    shutil.copytree(source / "results" / system / trained, folder)
    (target / "systems").mkdir()
    shutil.copy(source / "systems" / f"{system}.json", target / "systems")
    paths = sorted(folder.glob("result_*.txt"))
    published = [read_lines(path) for path in paths]
    before = _errors(folder, edition)

    found = []
    for forge in (_halve_times, _cut_evaluations, _copy_one, _double_batch):
        logs = copy.deepcopy(published)
        forge(logs)
        for path, lines in zip(paths, logs, strict=True):
            write(path, lines)
        found.append(_errors(folder, edition) - before)

    for rule, by in zip(rules, found, strict=True):
        assert rule in by if rule else not by
