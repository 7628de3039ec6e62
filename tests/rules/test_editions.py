"""Data of which there are several editions: any is taken, and results compare with equals."""

from __future__ import annotations

import hashlib
from pydoc_data import topics
from typing import TYPE_CHECKING

import pytest

from hybridperf.cli import main
from hybridperf.log.package import find_results
from hybridperf.report.board import boards
from hybridperf.report.judgement import read_entries
from hybridperf.rules.check import check_path
from hybridperf.rules.evidence import encoded
from hybridperf.tasks.data import check_data, load
from hybridperf.tasks.registry import find_task
from tests.packages import edit_manifest, seal, write_result
from tests.scaling_results import write_on

if TYPE_CHECKING:
    from pathlib import Path

TASK = "bert/laptop"
UNKNOWN = "0" * 64


def _write(root: Path, system: str, data_sha256: object, cores: int = 1) -> Path:
    """Write a result on an edition of the data; return its folder."""
    package = write_on(root, cores, system=system, task=TASK)
    for number in range(find_task(TASK).runs.count):
        edit_manifest(package, number, data_sha256=data_sha256)
    seal(root)
    return package.folder


@pytest.mark.parametrize("data_sha256", [*(find_task(TASK).data.editions or {}).values(), UNKNOWN])
def test_any_edition_is_valid(tmp_path: Path, data_sha256: str) -> None:
    _write(tmp_path, "one", data_sha256)

    assert check_path(tmp_path).findings == ()


def test_predictions_are_counted_by_the_labels_of_their_own_edition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = find_task(TASK)
    folder = _write(tmp_path, "one", check_data(task.data))
    labels = load(task.data).evaluation.labels
    wrong = encoded(labels[::-1])
    (folder / "predictions_0.npy").write_bytes(wrong)
    (package,) = find_results(tmp_path)
    facts = {"path": "predictions_0.npy", "sha256": hashlib.sha256(wrong).hexdigest()}
    edit_manifest(package, 0, predictions=facts)
    seal(tmp_path)

    assert {each.rule for each in check_path(tmp_path).findings} == {"result.predictions"}

    other = {name: text[::-1] for name, text in topics.topics.items()}
    monkeypatch.setattr(topics, "topics", other)
    monkeypatch.setattr("hybridperf.rules.evidence._LABELS", {})
    assert check_path(tmp_path).findings == ()


@pytest.mark.parametrize("data_sha256", [None, "", "3.11.7", UNKNOWN.replace("0", "A"), 5])
def test_what_is_no_checksum_is_not(tmp_path: Path, data_sha256: object) -> None:
    _write(tmp_path, "one", data_sha256)

    findings = check_path(tmp_path).findings

    assert {finding.rule for finding in findings} == {"run.manifest"}
    assert findings[0].expected == "the SHA-256 of the data, whichever edition it was"


def test_a_result_is_of_one_edition(tmp_path: Path) -> None:
    package = write_result(tmp_path, task=TASK)
    edit_manifest(package, 3, data_sha256=UNKNOWN)
    seal(tmp_path)

    (finding,) = check_path(tmp_path).findings

    assert finding.rule == "result.configuration"
    assert finding.expected.startswith("data_sha256 = ")
    assert finding.expected.endswith("runs")
    assert UNKNOWN[:50] in finding.found


def test_editions_are_ranked_apart(tmp_path: Path) -> None:
    _write(tmp_path, "own", find_task(TASK).data.sha256)
    _write(tmp_path, "equal", find_task(TASK).data.sha256)
    _write(tmp_path, "other", UNKNOWN)

    found = [
        (board.version, len(board.rows) + len(board.invalid))
        for board in boards(read_entries(tmp_path))
    ]

    assert found == [("1", 2), ("1-000000000000", 1)]


@pytest.mark.parametrize(
    ("command", "between"), [(["compare"], []), (["scale", "--from"], ["--from"])]
)
def test_editions_are_not_compared(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: list[str], between: list[str]
) -> None:
    one = str(_write(tmp_path, "one", find_task(TASK).data.sha256))
    other = str(_write(tmp_path, "other", UNKNOWN, cores=2))

    code = main([*command, one, *between, other])

    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    assert "data" in said.err
    assert len(said.err.splitlines()) == 1
