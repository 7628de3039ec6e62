"""``hybridperf fit``, on results of this suite and on MLPerf's rounds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from hybridperf.projection.systems import read_system
from tests.archives import extract

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Finished

ROOT: Final = Path(__file__).parents[2]
OURS: Final = ROOT / "submissions/hybridperf/results"
ROUNDS: Final = ROOT.parent / "shared/data/mlperf_rounds.tar.xz"
BASE: Final = ("--base", "v100-pcie")


def test_results_of_several_plans_make_a_system_that_plans_use(
    hybridperf: Callable[..., Finished], tmp_path: Path
) -> None:
    out = tmp_path / "mine.toml"
    folders = [f"{OURS}/2c-amd-epyc-{each}" for each in ("2026-11-dp2", "2bw", "synchronous")]

    done = hybridperf("fit", *folders, *BASE, "-o", str(out))

    assert done.code == 0, done.err
    assert (
        "12 results of bert/laptop, resnet/laptop, vgg/laptop, vit/laptop on AMD EPYC" in done.out
    )
    assert "speed factor of vit/laptop" in done.out
    assert "not determined: by these logs; catalogue value kept" in done.out
    assert "Leave-one-out error of throughput: median " in done.out
    assert f"hybridperf plan TASK --devices N --system {out}" in done.out
    system = read_system(out)
    assert system.device.name == "AMD EPYC"
    assert (system.library, system.devices_per_node) == ("gloo", 2)
    assert system.accuracy is not None
    assert system.accuracy.results == 12
    assert system.accuracy.median < 0.2
    planned = hybridperf("plan", "vit/laptop", "--devices", "2", "--system", str(out), "--json")
    found = json.loads(planned.out)
    assert found["accuracy"]["results"] == 12
    # Under dp=2, 32 samples took 11 to 13 ms.
    assert 0.006 < found["equivalent"]["plans"][0]["step_s"] < 0.02


def test_one_plan_and_one_batch_determine_the_speed_factor_alone(
    hybridperf: Callable[..., Finished],
) -> None:
    folders = [f"{OURS}/2c-amd-epyc-{each}/vit-laptop" for each in ("2026-11-dp2", "synchronous")]

    found = json.loads(hybridperf("fit", *folders, *BASE, "--json").out)

    determined = [each["name"] for each in found["parameters"] if each["determined"]]
    assert determined == ["speed factor of vit/laptop"]
    assert found["leave_one_out"]["results"] == 2
    assert {each["plan"] for each in found["results"]} == {"dp=2"}


def test_one_log_is_fitted_to_without_an_error(
    hybridperf: Callable[..., Finished], tmp_path: Path
) -> None:
    log, out = OURS / "2c-amd-epyc-2026-11-dp2/vit-laptop/result_0.txt", tmp_path / "mine.toml"

    done = hybridperf("fit", str(log), *BASE, "-o", str(out))

    assert "Leave-one-out error of throughput: unknown, since there is one result." in done.out
    assert read_system(out).accuracy is None


def test_copies_of_a_result_count_once(hybridperf: Callable[..., Finished], tmp_path: Path) -> None:
    name = "2c-amd-epyc-2026-11-dp2"
    for org in ("acme", "other"):
        shutil.copytree(OURS / name / "vit-laptop", tmp_path / f"{org}/results/{name}/vit-laptop")
        (tmp_path / org / "systems").mkdir()
        shutil.copy(OURS.parent / f"systems/{name}.json", tmp_path / org / "systems")

    found = json.loads(hybridperf("fit", str(tmp_path), *BASE, "--json").out)

    assert found["leave_one_out"] is None
    assert found["left_out"] == {"the runs of another result": 1}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nowhere"], 2, "nowhere: expected a log, a result folder or a round, found nothing"),
        (["empty"], 4, "empty: expected results in <org>/results/<system>/<benchmark>"),
        (["acme"], 2, "to begin with, found AMD EPYC, 1 core a rank; give --base one of v100-pcie"),
        (["acme", "--base", "v1OO-pcie"], 2, "found 'v1OO-pcie'; did you mean v100-pcie"),
        (["acme", *BASE, "-o", "mine.txt"], 2, "expected a file name that ends in .toml"),
        (["acme", *BASE, "-o", "no/mine.toml"], 4, "no: expected"),
        (["cut", *BASE], 3, "found 1 result with no run with a steady throughput"),
        (["alone", *BASE], 3, "found 1 result with no description of the system that counts"),
    ],
)
def test_wrong_logs_are_refused_in_a_sentence(
    hybridperf: Callable[..., Finished],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    words: list[str],
    code: int,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    name = "2c-amd-epyc-2026-11-dp2"
    for org in ("acme", "cut", "alone"):
        shutil.copytree(OURS / name / "vit-laptop", f"{org}/results/{name}/vit-laptop")
        if org != "alone":
            Path(org, "systems").mkdir()
            shutil.copy(OURS.parent / f"systems/{name}.json", f"{org}/systems")
    for log in Path("cut").rglob("result_*.txt"):
        log.write_bytes(log.read_bytes()[:2000])

    done = hybridperf("fit", *words)

    assert done.code == code
    assert said in done.sentence
    assert len(done.err.splitlines()) == 1


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not ROUNDS.exists():
        pytest.skip("published rounds are in ../shared/data, which is not part of the project")
    folder = tmp_path_factory.mktemp("rounds")
    extract(ROUNDS, folder)
    return folder


def test_errors_on_a_round_are_bounded(hybridperf: Callable[..., Finished], rounds: Path) -> None:
    """BERT on A100 in two rounds: of all submitters, and of one."""
    folders = sorted(map(str, rounds.glob("training_results_v2.*/*/results/*/bert")))

    found = json.loads(hybridperf("fit", *folders, "--base", "a100-sxm", "--json").out)

    assert found["device"] == "NVIDIA A100 SXM 80 GB"
    assert found["leave_one_out"]["results"] >= 20
    assert found["left_out"]["the runs of another result"] == 2
    assert found["leave_one_out"]["median"] < 0.08
    assert found["leave_one_out"]["worst"] < 0.5
    assert any("on another device than" in each for each in found["left_out"])
    own = [each for each in folders if "/NVIDIA/" in each]
    found = json.loads(hybridperf("fit", *own, "--json").out)
    assert found["base"] == "a100-sxm"
    assert found["leave_one_out"]["median"] < 0.03
