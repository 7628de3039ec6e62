"""Results, runs and evaluations as data frames."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import hybridperf
from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding
from hybridperf.report import frames
from hybridperf.report.frames import CURVE_COLUMNS, RUN_COLUMNS
from hybridperf.score.metrics import METRICS
from tests.packages import EPOCHS, write_result
from tests.score.made_up_round import judge_made_up, log_lines, write_round

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.log.package import Package

pd = pytest.importorskip("pandas")

DTYPES = {
    "text": pd.StringDtype(),
    "whole": pd.Int64Dtype(),
    "number": pd.Float64Dtype(),
    "truth": pd.BooleanDtype(),
    "list": pd.StringDtype(),
}


@pytest.fixture(scope="module")
def submissions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("frames")
    write_result(root, system="fast")
    write_result(root, system="slow", times_s=[20.0, 21.0, 22.0, 23.0, 24.0], missed=[4])
    return root


def test_a_result_is_a_row_of_typed_metrics(submissions: Path) -> None:
    frame = hybridperf.read_results(submissions)

    assert list(frame["system"]) == ["fast", "slow"]
    assert dict(frame.dtypes) == {name: DTYPES[each.kind] for name, each in METRICS.items()}
    assert frame["olympic_mean_s"][0] == pytest.approx(12.0)
    assert frame["interval_high_s"][1] is pd.NA  # no upper end where a run missed its target
    assert frame.attrs["units"]["throughput_samples_per_s"] == "samples/s"
    assert frame.attrs["docs"]["submitter"] == "organisation"


def test_a_run_is_a_row(submissions: Path) -> None:
    frame = hybridperf.read_runs(str(submissions))

    assert dict(frame.dtypes) == {each.name: DTYPES[each.kind] for each in RUN_COLUMNS}
    slow = frame[frame["system"] == "slow"].set_index("run")
    assert len(frame) == 10
    assert slow["completion"].value_counts().to_dict() == {"reached": 4, "missed": 1}
    assert slow["time_to_train_s"][0] == pytest.approx(20.0)
    assert slow["time_to_train_s"][4] is pd.NA
    assert slow["file"][4] == "result_4.txt"
    assert slow["seed"][4] == "1004"


def test_an_evaluation_is_a_row(submissions: Path) -> None:
    frame = hybridperf.read_curves(submissions / "acme/results/fast/resnet-laptop")

    assert dict(frame.dtypes) == {each.name: DTYPES[each.kind] for each in CURVE_COLUMNS}
    assert list(frame.groupby("run")["evaluation"].max()) == [EPOCHS] * 5
    last = frame[frame["evaluation"] == EPOCHS]
    assert list(last["time_s"]) == pytest.approx([10.0, 11.0, 12.0, 13.0, 14.0], rel=0.01)


def test_frames_join_by_the_columns_that_they_share(submissions: Path) -> None:
    results, runs = hybridperf.read_results(submissions), hybridperf.read_runs(submissions)

    keys = ["submitter", "system", "benchmark"]
    joined = runs.merge(results[[*keys, "olympic_mean_s"]], on=keys)

    assert list(joined["run"]) == list(runs["run"])


def test_a_round_and_a_folder_of_rounds_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge_made_up(monkeypatch)
    for number, time_s in ((8, 800.0), (9, 100.0)):
        logs = [log_lines(time_s + run) for run in range(10)]
        write_round(tmp_path / f"training_results_v{number}.0", logs)

    frame = hybridperf.read_results(tmp_path)

    assert list(frame["round"]) == ["8.0", "9.0"]
    assert frame["plan"].isna().all()  # MLPerf's logs state none
    assert list(frame["since_round"].isna()) == [True, False]
    assert list(hybridperf.read_results(tmp_path / "training_results_v9.0")["round"]) == ["9.0"]
    assert len(hybridperf.read_runs(tmp_path)) == 20


def test_numbers_that_do_not_fit_their_type_are_missing() -> None:
    column = frames.Column("epoch", "as a log states it", lambda row: row, "whole")

    frame = frames._frame([column], {"epoch": [2**64, 3]})

    assert frame["epoch"].isna().tolist() == [True, False]


def test_text_is_escaped(tmp_path: Path) -> None:
    write_result(tmp_path, org="a\x1b[31m")

    assert list(hybridperf.read_runs(tmp_path)["submitter"].unique()) == ["a\\x1b[31m"]


def test_what_cannot_be_read_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(_: object, barred: list[Finding]) -> list[Package]:
        barred.append(Finding("package.unreadable", "a file", "permission denied", "get it"))
        return []

    monkeypatch.setattr(frames, "found_packages", locked)

    with pytest.warns(UserWarning, match="expected a file, found permission denied"):
        assert hybridperf.read_results(tmp_path).empty


def test_nothing_to_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="found none; make some") as caught:
        hybridperf.read_results(tmp_path)

    assert caught.value.exit_code is ExitCode.ENVIRONMENT


def test_without_pandas_one_sentence_says_the_remedy(
    submissions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)

    with pytest.raises(UserError) as caught:
        hybridperf.read_runs(submissions)

    assert str(caught.value) == (
        "expected the package pandas, found no such package; "
        "install it with: pip install 'hybridperf[tables]'."
    )


def test_importing_hybridperf_imports_neither_pandas_nor_numpy() -> None:
    code = (
        "import sys, hybridperf; print({'pandas', 'numpy'} & set(sys.modules));"
        "from hybridperf import read_results; print('pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "set()\nFalse\n"


def test_other_names_are_no_attributes() -> None:
    with pytest.raises(AttributeError, match="no attribute 'read_nothing'"):
        hybridperf.read_nothing  # noqa: B018 - reading it is the test
