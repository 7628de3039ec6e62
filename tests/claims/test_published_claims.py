"""The claims of ``claims/``, by MLPerf's logs: the figures that were found by hand, and verdicts.

Ratios of times are those of ``compare``, of the arithmetic means over the runs of the score; by the
olympic means, savings over the four other results on 64 accelerators are 0.9, 8.0, 19.7 and 25.8 %.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from hybridperf.claims.check import check_claims
from hybridperf.claims.claim import NoCheck, read_claims
from hybridperf.claims.verdict import ClaimVerdict
from hybridperf.cli.main import main
from tests.archives import extract
from tests.claims.files import claim_text, write_claims_file
from tests.published import REPORTS
from tests.score.rounds import DATA, NEEDS_DATA

if TYPE_CHECKING:
    from hybridperf.claims.verdict import CheckedClaim, ClaimReading

ROOT: Final = Path(__file__).parents[2]
BAIDU: Final = ROOT / "claims/baidu.toml"
#: results that the claims of Baidu's article are about: round, organisation, and how systems begin
WANTED: Final = (
    ("v2.1", "Baidu", "8_node"),
    ("v2.1", "NVIDIA", "dgxa100_n8_"),
    ("v2.1", "Azure-HazyResearch", "ND96amsr_A100_v4_n8_"),
    ("v2.1", "HPE", "HPE-ProLiant-XL675d-Gen10-Plus_A100-SXM-80GB_8N_pytorch"),
    ("v2.1", "Dell", "16x"),
    ("v2.0", "Baidu", "XMan4.0"),
    ("v2.0", "Inspur", "nf5"),
    ("v2.0", "NVIDIA", "dgxa100_ngc"),
)
LARGE: Final = "training_results_v2.1/Baidu/results/8_node_64_A100_PaddlePaddle/bert"


def _wanted(name: str) -> bool:
    parts = Path(name).parts
    if len(parts) < 4 or (parts[2] == "results" and "bert" not in parts):
        return False
    edition = parts[0].removeprefix("training_results_")
    return any(
        (edition, parts[1]) == (of, org) and parts[3].startswith(system)
        for of, org, system in WANTED
    )


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rounds")
    extract(DATA / "mlperf_rounds.tar.xz", folder, _wanted)
    return folder


@pytest.fixture(scope="module")
def checked(rounds: Path) -> dict[str, CheckedClaim]:
    return {each.claim.id: each for each in check_claims([BAIDU], [rounds])}


def _by(checked: CheckedClaim, name: str) -> dict[str, ClaimReading]:
    """Return readings by a condition, by its first word."""
    return {each.conditions[name].split()[0]: each for each in checked.evidence.readings}


def _values(checked: CheckedClaim, name: str) -> dict[str, float]:
    return {key: round(each.value, 2) for key, each in _by(checked, name).items()}


@NEEDS_DATA
def test_the_rank_is_right_and_the_lead_is_a_tie(checked: dict[str, CheckedClaim]) -> None:
    first = checked["B01"]

    (reading,) = first.evidence.readings
    assert (reading.value, reading.low, reading.high) == (1, 1, 2)
    assert first.verdict is ClaimVerdict.NOT_DISTINGUISHABLE
    assert first.evidence.notes[0].endswith(
        "Baidu 148.55 s, NVIDIA 149.85 s, Azure-HazyResearch 161.89 s, HPE 185.01 s, Dell 200.13 s"
    )


@NEEDS_DATA
def test_the_time_is_right(checked: dict[str, CheckedClaim]) -> None:
    assert checked["B02"].verdict is ClaimVerdict.CONFIRMED
    assert checked["B02"].evidence.readings[0].value == pytest.approx(148.552, abs=0.001)


def test_organisations_are_of_another_round() -> None:
    (of,) = check_claims([BAIDU], [], "B03")

    assert (of.verdict, of.evidence.readings[0].value) == ("contradicted", 18)


@NEEDS_DATA
def test_two_results_of_the_round_before_were_faster(checked: dict[str, CheckedClaim]) -> None:
    best = checked["B04"]

    assert best.verdict is ClaimVerdict.CONTRADICTED
    assert sum(each.value < 0 for each in best.evidence.readings) == 2
    notes = "\n".join(best.evidence.notes)
    assert (
        "NVIDIA dgxa100_ngc22.04_pytorch and of the result: 1106.55 s and 995.93 s, +11.1" in notes
    )
    assert "Inspur nf5688m6_pytorch and of the result: 952.15 s and 995.93 s, -4.4 %" in notes
    assert "Inspur nf5488a5_pytorch and of the result: 970.96 s and 995.93 s, -2.5 %" in notes


@NEEDS_DATA
def test_savings_hold_for_entries_of_80_gb(checked: dict[str, CheckedClaim]) -> None:
    saving = checked["B05"]

    # By the arithmetic means; by the olympic means 0.9, 8.0, 19.7 and 25.8 %. By the official
    # scores it is 8.2 % over Azure-HazyResearch, whose score has a factor of 1.0026.
    found = _values(saving, "base")
    assert found == {"NVIDIA": 1.03, "Azure-HazyResearch": 7.88, "HPE": 19.78, "Dell": 26.22}
    assert not _by(saving, "base")["NVIDIA"].distinguishable
    notes = [each.rpartition(", ")[2] for each in saving.evidence.notes if "scores" in each]
    assert notes == ["8.2 % less", "25.8 % less", "19.7 % less", "0.9 % less"]
    assert saving.words == "holds where accelerator of the base is NVIDIA A100 SXM 80 GB"


@NEEDS_DATA
def test_throughput_holds_for_entries_of_80_gb(checked: dict[str, CheckedClaim]) -> None:
    rates = checked["B06"]

    end_to_end = {
        each.conditions["base"].split()[0]: round(each.value, 2)
        for each in rates.evidence.readings
        if each.conditions["metric"] == "end-to-end throughput"
    }
    assert end_to_end == {"NVIDIA": 1.65, "Azure-HazyResearch": 12.26, "HPE": 10.41, "Dell": 37.98}
    assert rates.words == (
        "holds where metric is end-to-end throughput and accelerator of the base is NVIDIA A100 "
        "SXM 80 GB"
    )


@NEEDS_DATA
def test_the_lead_over_nvidia_is_one_of_throughput(checked: dict[str, CheckedClaim]) -> None:
    lead = checked["B07"]

    assert _values(lead, "metric") == {"time": 1.04, "end-to-end": 1.65, "steady": 1.8}
    assert lead.words == "holds where metric is end-to-end throughput or steady throughput"


@NEEDS_DATA
def test_the_efficiency_is_one_of_throughput(checked: dict[str, CheckedClaim]) -> None:
    scaling = checked["B08"]

    found = {
        name: (each.value, each.low, each.high) for name, each in _by(scaling, "metric").items()
    }
    # Found by hand with an earlier commit: 92.7 to 95.4, 94.4 to 96.9 and 77.5 or more. Since then
    # ratios have intervals by Fieller's method, with the variance of the rates of all runs.
    assert found["end-to-end"] == pytest.approx((94.04, 92.46, 95.67), abs=0.01)
    assert found["steady"] == pytest.approx((95.59, 94.08, 97.15), abs=0.01)
    assert found["time"] == pytest.approx((83.80, 76.90, float("inf")), abs=0.01)
    assert scaling.words == "holds where metric is end-to-end throughput"


@NEEDS_DATA
def test_a_run_that_is_five_seconds_slower_changes_a_verdict(rounds: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(rounds, tmp_path / "rounds")
    log = copy / LARGE / "result_2.txt"
    lines = log.read_text().splitlines(keepends=True)
    for at, line in enumerate(lines):
        if '"run_stop"' in line:
            head, _, text = line.partition("{")
            entry = json.loads("{" + text)
            entry["time_ms"] += 5000
            lines[at] = f"{head}{json.dumps(entry)}\n"
    log.write_text("".join(lines))

    (before,), (after,) = (check_claims([BAIDU], [each], "B06") for each in (rounds, copy))

    assert before.words != after.words


def test_every_claim_is_of_a_source_and_has_a_verdict_without_rounds(tmp_path: Path) -> None:
    files = sorted((ROOT / "claims").glob("*.toml"))
    claims = [claim for path in files for claim in read_claims(path)]

    assert len({claim.id for claim in claims}) == len(claims)
    of_baidu = check_claims([BAIDU], [tmp_path])
    assert len(of_baidu) == 14
    assert Counter(each.verdict for each in of_baidu) == {
        ClaimVerdict.CANNOT_BE_CHECKED: 12,
        ClaimVerdict.CONTRADICTED: 1,
        ClaimVerdict.CONFIRMED: 1,
    }
    assert all(claim.value or isinstance(claim.check, NoCheck) for claim in claims)


@NEEDS_DATA
def test_the_files_have_the_claims_of_all_five_sources() -> None:
    with (DATA / "claims.json").open(encoding="utf-8") as file:
        known = sorted(row["id"] for row in json.load(file))

    claims = [claim.id for path in (ROOT / "claims").glob("*.toml") for claim in read_claims(path)]

    assert sorted(claims) == known
    assert len(known) == 47


@pytest.mark.parametrize(
    ("name", "claim", "verdict"),
    [("gropipe", "G13", "contradicted"), ("lv", "L03", "contradicted")],
)
def test_convergence_is_checked_by_the_published_results(
    name: str, claim: str, verdict: str
) -> None:
    (found,) = check_claims([ROOT / f"claims/{name}.toml"], [ROOT], claim)

    # Two weight versions need more samples on VGG and ViT. Links in int8 need as many as full ones
    # on three tasks, and on BERT 1.08 times as many, which the test by means decides.
    assert found.verdict == verdict
    assert all(each.low is not None for each in found.evidence.readings)


_GRID: Final = """\
kind = "project"
task = "resnet50/cluster"
plan = "dp=4,pp=2,microbatches=1,staleness=1,flush=off"
base = "dp=8,sync=blocking"
system = "{}"
batches = [32, 128]
precision = "fp16"
"""


def test_a_grid_of_other_links_changes_the_verdict(tmp_path: Path) -> None:
    def verdict(system: str) -> str:
        path = write_claims_file(tmp_path, claim_text(_GRID.format(system), "41.9 %"))
        (checked,) = check_claims([path], [])
        return checked.words

    assert verdict("a100-pcie") == "holds where its conditions are open: consistent, not identified"
    assert verdict("a100-sxm") == "contradicted"


@pytest.mark.exhaustive
@NEEDS_DATA
def test_the_published_page_is_what_claims_rounds_and_submissions_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extract(DATA / "mlperf_rounds.tar.xz", tmp_path / "rounds", lambda _: True)
    for name in ("claims", "submissions"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    files = [str(path) for path in sorted(Path("claims").glob("*.toml"))]
    roots = ["--root", "rounds", "--root", "."]

    status = main(["report", "submissions", "--out", "reports", "--claims", *files, *roots])

    assert status == 0
    for path in REPORTS.iterdir():
        assert (tmp_path / "reports" / path.name).read_bytes() == path.read_bytes(), path.name
