"""Whatever is to be judged, the answer is a finding: never a traceback, a hang or a wrong pass."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hybridperf.errors import ExitCode, UserError
from hybridperf.log.package import find_results, read_result
from hybridperf.report.page import build_report
from hybridperf.rules.check import check_path
from hybridperf.rules.evidence import read_classes
from hybridperf.run.files import remove_folder
from hybridperf.score.score import score_result
from tests.hostile.inputs import RUN, Hostile
from tests.hostile.inputs_files import FILES
from tests.hostile.inputs_json import JSON
from tests.hostile.inputs_runs import RUNS
from tests.packages import log_path, write_result
from tests.tiers import in_tiers

if TYPE_CHECKING:
    from hybridperf.findings import Finding
    from hybridperf.rules.verdict import Verdict
    from tests.tiers import Fact

KINDS = {"json": JSON} | RUNS | FILES
INPUTS = [each for some in KINDS.values() for each in some]
PUBLISHED = "mlperf-training-2.1.0"
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_COMMAND = "from hybridperf.cli import main; raise SystemExit(main())"
_COMMANDS = [
    "official: 5",
    "official: script as organisation",
    "terminal colours as a benchmark",
    "an organisation named with a line feed",
    "a pipe as a log",
    "a folder as a log",
    "a manifest deep",
    "a name of 300 bytes",
    "a link to itself alone",
]


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("valid")
    write_result(root)
    return root


def _make(valid: Path, tmp_path: Path, each: Hostile) -> tuple[Path, Path]:
    """Return what to check, and the log that was made hostile, which may be gone."""
    root = Path(shutil.copytree(valid, tmp_path / "root"))
    (package,) = find_results(root)
    return each.make(package) or root, log_path(package, RUN)


def _check(path: Path, ruleset: str | None = None) -> tuple[Finding, ...]:
    """Return the findings, which must be fit to be printed; pytest's own limit ends a hang."""
    try:
        verdict = check_path(path) if ruleset is None else check_path(path, ruleset, "as-published")
    except UserError as refusal:
        return (_refused(refusal),)
    _assert_presentable(verdict)
    assert not verdict.valid
    return verdict.findings


def _refused(refusal: UserError) -> Finding:
    assert refusal.exit_code is ExitCode.ENVIRONMENT
    assert str(refusal).isprintable()
    assert refusal.finding is not None
    return refusal.finding


def _assert_presentable(verdict: Verdict) -> None:
    assert len(verdict.findings) < 3_000
    for finding in verdict.findings:
        assert finding.sentence.isprintable()
        assert len(finding.sentence) < 2_000
    table = verdict.as_json()
    assert json.loads(json.dumps(table, allow_nan=False)) == table


def facts(each: Hostile) -> set[Fact]:
    kinds = {("kind", kind) for kind, some in KINDS.items() if each in some}
    return kinds | {("rule", rule) for rule in each.rules}


def test_no_two_inputs_share_a_name() -> None:
    names = [each.name for each in INPUTS]

    assert len(set(names)) == len(names)
    assert set(_COMMANDS) <= set(names)


@pytest.mark.parametrize("each", in_tiers(INPUTS, facts), ids=lambda each: each.name)
def test_a_hostile_input_is_named_and_can_be_scored(
    valid: Path, tmp_path: Path, each: Hostile
) -> None:
    path, log = _make(valid, tmp_path, each)

    findings = _check(path)

    assert {finding.rule for finding in findings} >= each.rules
    if each.large:
        _check(log, PUBLISHED)
        return
    if log.is_file():
        _assert_presentable(check_path(log))
        _check(log, PUBLISHED)
    if not {"check.path", "log.file"} & each.rules or path.name == "root":
        _score_and_show(path, tmp_path / "report")


def _score_and_show(path: Path, out: Path) -> None:
    for package in find_results(path):
        score_result(read_result(package))
    pages = build_report(path, out)
    for file in pages:
        text = file.read_text()
        assert not _UNPRINTABLE.search(text)
        if file.suffix == ".html":
            assert "<script>alert" not in text
            assert "<img src=x" not in text


@pytest.mark.parametrize(
    "each",
    in_tiers([each for each in INPUTS if each.name in _COMMANDS], facts),
    ids=lambda each: each.name,
)
def test_the_command_answers_with_a_status_and_no_traceback(
    valid: Path, tmp_path: Path, each: Hostile
) -> None:
    path, _ = _make(valid, tmp_path, each)

    done = subprocess.run(
        [sys.executable, "-c", _COMMAND, "check", os.fspath(path)],
        capture_output=True,
        check=False,
    )

    output = (done.stdout + done.stderr).decode()
    assert done.returncode in {ExitCode.INVALID, ExitCode.ENVIRONMENT}, output
    assert "Traceback" not in output
    assert all(line.isprintable() for line in output.split("\n"))


@pytest.mark.parametrize("arguments", [["check"], ["score"], ["report", "--out", "page"]])
def test_folders_deeper_than_python_s_stack_are_searched(
    valid: Path, tmp_path: Path, arguments: list[str]
) -> None:
    root = Path(shutil.copytree(valid, tmp_path / "root"))
    inner = os.open(root, os.O_RDONLY)
    for name in ["deep", *["a"] * 1500]:
        os.mkdir(name, dir_fd=inner)
        outer, inner = inner, os.open(name, os.O_RDONLY, dir_fd=inner)
        os.close(outer)
    os.close(inner)

    try:
        done = subprocess.run(
            [sys.executable, "-c", _COMMAND, *arguments, "root"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        remove_folder(root / "deep")  # which pytest cannot

    assert "Traceback" not in done.stderr
    assert done.returncode == 0, done


@pytest.mark.parametrize(
    "header",
    [
        "(",
        "(" * 100,
        "{" * 9000,
        "-" * 9000 + "1",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (1e9,)}",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (9999999999999,)}",
        "{'descr': 'O', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': [('a', 'b')], 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (1L,)}",
        "\x00",
    ],
)
def test_headers_of_predictions_that_are_none_are_refused(tmp_path: Path, header: str) -> None:
    path, content = tmp_path / "predictions_0.npy", header.encode() + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(content).to_bytes(2, "little") + content + bytes(8))

    with pytest.raises(ValueError, match="array of"):
        read_classes(path)
