from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.cli.published_projections import validate_on_rounds
from hybridperf.errors import ExitCode, UserError
from tests.score.made_up_round import line, write_round

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.run.conftest import Finished

DEVICE = "NVIDIA A100-SXM4-80GB"


def _facts(nodes: int) -> dict[str, Any]:
    return {
        "division": "closed",
        "number_of_nodes": nodes,
        "accelerators_per_node": 8,
        "accelerator_model_name": DEVICE,
        "host_networking": "8x ConnectX-6 IB HDR 200Gb/Sec",
    }


def _log(batch: int, samples_per_s: float, *, steps: int = 1000, **changes: object) -> list[str]:
    facts = {"submission_division": "closed", "gradient_accumulation_steps": 1} | changes
    half = batch * steps // 2
    return [
        line("submission_benchmark", "bert"),
        *(line(key, value) for key, value in facts.items()),
        line("global_batch_size", batch),
        line("run_start"),
        line("eval_accuracy", 0.5, half / samples_per_s, epoch_num=half),
        line("eval_accuracy", 0.73, 2 * half / samples_per_s, epoch_num=2 * half),
        line("train_samples", 2 * half, 2 * half / samples_per_s),
        line("run_stop", None, 2 * half / samples_per_s, status="success"),
    ]


def _write(root: Path, nodes: int, batch: int, samples_per_s: float, **changes: Any) -> None:
    system = changes.pop("system", f"n{nodes}")
    org = changes.pop("org", "acme")
    logs = [_log(batch, samples_per_s, **changes)] * 3
    write_round(root, logs, org=org, system=system, facts=_facts(nodes))


@pytest.fixture
def rounds(tmp_path: Path) -> Path:
    root = tmp_path / "training_results_v2.1"
    _write(root, 1, 448, 2400.0)
    _write(root, 8, 3072, 18_000.0)
    return tmp_path


def _answer(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert validate_on_rounds(path, as_json=True, jobs=1) is ExitCode.OK
    answer = json.loads(capsys.readouterr().out)
    assert isinstance(answer, dict)
    return answer


def test_published_results_are_read_and_projected(
    rounds: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = _answer(rounds, capsys)

    (found,) = answer["results"]
    assert found["device"] == "NVIDIA A100 SXM 80 GB"
    assert found["base"]["devices"] == 8
    assert found["base"]["samples_per_s"] == pytest.approx(2400, rel=1e-3)
    assert found["result"]["devices"] == 64
    assert found["result"]["samples_per_s"] == pytest.approx(18_000, rel=1e-3)
    assert found["result"]["between_bytes_per_s"] == pytest.approx(23e9)
    assert found["projected_samples_per_s"] == pytest.approx(18_300, rel=0.02)
    assert found["error"] == pytest.approx(found["projected_samples_per_s"] / 18_000 - 1, abs=1e-3)
    assert answer["summaries"]["all"]["results"] == 1
    assert answer["not_projected"] == []


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"submission_division": "open"}, "closed division"),
        ({"gradient_accumulation_steps": 3072}, "not data parallelism alone"),
    ],
)
def test_what_is_not_projected_is_named(
    rounds: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], why: str
) -> None:
    root = rounds / "training_results_v2.1"
    facts = _facts(16) | ({"division": "open"} if "submission_division" in changes else {})
    write_round(root, [_log(3072, 30_000.0, **changes)] * 3, system="odd", facts=facts)

    answer = _answer(rounds, capsys)

    (left_out,) = answer["not_projected"]
    assert why in left_out["why"]
    assert "odd" in left_out["place"]
    assert len(answer["results"]) == 1


def test_evaluations_logged_after_training_do_not_count_as_throughput(
    rounds: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late = _log(3072, 18_000.0)
    moved = [each if "eval_accuracy" not in each else "" for each in late]
    end_s = 3072 * 1000 / 18_000.0
    moved[-1:-1] = [
        line("eval_accuracy", 0.5, end_s - 0.2, epoch_num=3072 * 500),
        line("eval_accuracy", 0.73, end_s - 0.1, epoch_num=3072 * 1000),
    ]
    root = rounds / "training_results_v2.1"
    write_round(root, [moved] * 3, system="late", facts=_facts(4))

    answer = _answer(rounds, capsys)

    assert [each["why"] for each in answer["not_projected"]] == [
        "evaluations logged at other times than they were made"
    ]


def test_the_table_fits_80_columns_and_escapes_names(
    rounds: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    root = rounds / "training_results_v2.1"
    for nodes, batch, rate in ((1, 448, 2400.0), (2, 896, 900.0)):
        _write(root, nodes, batch, rate, org="evil\x1b[31m", system=f"\u202esmall{nodes}")

    assert validate_on_rounds(rounds, as_json=False, jobs=1) is ExitCode.OK
    text = capsys.readouterr().out

    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert r"evil\x1b[31m" in text
    assert "too wide" not in text
    assert "bert, NVIDIA A100 SXM 80 GB" in text
    for word in ("published/s", "projected/s", "error", "median", "far off"):
        assert word in text


def test_the_command_needs_no_task(
    hybridperf: Callable[..., Finished], rounds: Path, tmp_path: Path
) -> None:
    shown = hybridperf("plan", "--validate", str(rounds))
    as_json = hybridperf("plan", "--validate", str(rounds), "--json", "--jobs", "2")
    page = hybridperf("plan", "--curves", str(tmp_path / "pages"))
    refused = hybridperf("plan", "--devices", "8")

    assert (shown.code, as_json.code, page.code, refused.code) == (0, 0, 0, 2)
    assert "projected/s" in shown.out
    assert "n8" in shown.out  # the system's name, where lines are long
    assert len(json.loads(as_json.out)["results"]) == 1
    assert page.out.strip().endswith("projected_scaling.html")
    assert "--validate or --curves" in refused.err


def test_a_folder_without_such_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unpack rounds") as refused:
        validate_on_rounds(tmp_path, as_json=False, jobs=1)

    assert refused.value.exit_code is ExitCode.ENVIRONMENT
