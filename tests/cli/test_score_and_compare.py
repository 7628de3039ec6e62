"""``hybridperf score`` and ``hybridperf compare`` on rounds of MLPerf and on our own results."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from hybridperf.score.metrics import METRICS
from tests.packages import edit_manifest, write_result
from tests.score.made_up_round import BATCH, RULESET, judge_made_up, log_lines, write_round

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hybridperf.log.package import Package
    from tests.run.conftest import Finished

SCORE = ("score", "--ruleset", RULESET)
TIMES_S = [100.0, 110.0, 120.0, 130.0, 140.0]
SLOW_S = [200.0, 210.0, 220.0, 230.0, 240.0]


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a round: two systems of one organisation."""
    judge_made_up(monkeypatch)
    root = tmp_path / "round"
    write_round(root, [log_lines(time_s) for time_s in TIMES_S])
    facts = {"division": "closed", "number_of_nodes": 1, "accelerators_per_node": 4}
    logs = [log_lines(time_s, samples=2_420_000) for time_s in SLOW_S]
    write_round(root, logs, system="four", facts=facts)
    return root


@pytest.fixture
def rcp_set(tmp_path: Path) -> Path:
    folder = tmp_path / "rcps"
    folder.mkdir()
    runs = [2_400_000, 2_500_000, 2_600_000, 2_700_000, 2_500_000]
    record = {"Benchmark": "bert", "BS": BATCH, "Epochs to converge": runs}
    (folder / "rcps_bert.json").write_text(json.dumps({"bert_ref": record}))
    return folder


def test_without_reference_points_the_factor_is_null_and_a_line_says_why(
    hybridperf: Callable[..., Finished], published: Path
) -> None:
    rows = json.loads(hybridperf(*SCORE, str(published), "--format", "json").out)

    assert [row["system"] for row in rows] == ["eight", "four"]
    assert [row["accelerators"] for row in rows] == [8, 4]
    assert [row["olympic_minutes"] for row in rows] == [2.0, pytest.approx(220 / 60)]
    assert all(row["rcp_factor"] is row["official_minutes"] is None for row in rows)
    text = hybridperf(*SCORE, str(published)).out
    assert "2 without official score: no reference points; name their folder with --rcp-set" in text


@pytest.mark.parametrize("mode", ["rules", "compat"])
def test_with_reference_points_there_is_an_official_score(
    hybridperf: Callable[..., Finished], published: Path, rcp_set: Path, mode: str
) -> None:
    command = (*SCORE, str(published), "--rcp-set", str(rcp_set), "--rcp", mode)
    rows = json.loads(hybridperf(*command, "--format", "json").out)

    mean = (2_500_000 + 2_600_000 + 2_500_000) / 3
    factors = [mean / 2_500_000, mean / 2_420_000]
    assert [row["rcp_factor"] for row in rows] == pytest.approx(factors)
    assert [row["rcp_passed"] for row in rows] == [True, mode == "compat"]
    assert rows[0]["official_minutes"] == pytest.approx(2 * factors[0])
    text = hybridperf(*command).out
    assert "2.0267" in text
    why = "1 without official score: converges faster than the reference allows"
    assert (why in text) is (mode == "rules")


def test_with_the_published_factor(hybridperf: Callable[..., Finished], published: Path) -> None:
    rows = json.loads(
        hybridperf(*SCORE, str(published), "--rcp", "published", "--format", "json").out
    )

    assert [row["rcp_factor"] for row in rows] == [1, 1]


def test_a_published_round_has_the_factor_that_it_published(
    hybridperf: Callable[..., Finished], published: Path, rcp_set: Path
) -> None:
    round_ = published.rename(published.with_name("training_results_v2.1"))
    scaled = round_ / "acme" / "results" / "four" / "bert" / "scaling.json"
    scaled.write_text('{"scaling_factor": 1.25}')

    def modes(*options: str) -> list[tuple[str, float | None]]:
        rows = json.loads(hybridperf("score", str(round_), "--format", "json", *options).out)
        return [(row["rcp_mode"], row["rcp_factor"]) for row in rows]

    assert modes() == [("published", 1), ("published", 1.25)]
    assert modes("--rcp", "rules") == [("rules", None)] * 2
    assert [mode for mode, _ in modes("--rcp-set", str(rcp_set))] == ["rules"] * 2


def test_a_result_without_logs_is_not_compared(
    hybridperf: Callable[..., Finished], tmp_path: Path
) -> None:
    folder = tmp_path / "acme" / "results" / "one" / "bert"
    folder.mkdir(parents=True)
    (folder / "result_x.txt").touch()
    (folder / "result_0.json").write_text("{}")

    done = hybridperf("compare", str(folder), str(folder))

    assert done.code == 4
    assert "expected logs called result_<n>.txt, found none; rename them" in done.sentence


def test_a_wrong_rcp_set_is_refused(
    hybridperf: Callable[..., Finished], published: Path, tmp_path: Path
) -> None:
    done = hybridperf(*SCORE, str(published), "--rcp-set", str(tmp_path / "none"))

    assert done.code == 2
    assert "name another --rcp-set" in done.sentence


def test_ours_and_mlperfs_stand_in_tables_of_their_own(
    hybridperf: Callable[..., Finished], published: Path
) -> None:
    write_result(published / "ours")

    text = hybridperf(*SCORE, str(published)).out

    assert "time to train" in text
    assert "official" in text
    assert len(json.loads(hybridperf(*SCORE, str(published), "--format", "json").out)) == 3


def test_scores_are_written_and_printed_alike(
    hybridperf: Callable[..., Finished], published: Path, tmp_path: Path
) -> None:
    write_result(published / "ours")
    out = tmp_path / "new" / "scores"

    done = hybridperf(*SCORE, str(published), "--out", str(out))
    printed = hybridperf(*SCORE, str(published), "--format", "json").out

    assert done.code == 0
    names = ("scores.csv", "scores.json", "scores.parquet")
    assert done.out.splitlines()[-3:] == [str(out / name) for name in names]
    assert (out / "scores.json").read_text() == printed
    assert (out / "scores.csv").read_text() == (
        hybridperf(*SCORE, str(published), "--format", "csv").out
    )
    rows = json.loads(printed)
    assert (
        pytest.importorskip("pyarrow.parquet").read_table(out / "scores.parquet").num_rows
        == len(rows)
        == 3
    )
    assert list(rows[0]) == list(METRICS)
    assert [(row["place_best"], row["place_worst"]) for row in rows] == [
        (None, None),  # BERT takes ten runs
        (None, None),
        (1, 1),
    ]
    refused = hybridperf(*SCORE, str(published), "--out", "/dev/null")
    assert refused.code == 4
    assert "choose another folder with --out" in refused.sentence


def test_our_own_results_are_held_to_their_task(
    hybridperf: Callable[..., Finished], tmp_path: Path
) -> None:
    write_result(tmp_path, times_s=[10.0, 11.0, 12.0, 13.0, 14.0], missed=[2])

    lines = hybridperf("score", str(tmp_path)).out.splitlines()

    assert lines[0].split()[:2] == ["place", "task"]
    assert lines[0].split()[-3:] == ["dropped", "RCP", "official"]
    assert "0, 2 missed" in lines[2]


def test_two_results_are_compared(hybridperf: Callable[..., Finished], published: Path) -> None:
    results = published / "acme" / "results"
    paths = (str(results / "four"), str(results / "eight" / "bert"))

    done = hybridperf("compare", *paths)
    answer = json.loads(hybridperf("compare", *paths, "--format", "json").out)

    assert done.code == 0
    assert "B is faster than A" in done.out
    assert "samples to converge x 1.0331" in done.out
    assert "91.7% by time to train" in done.out
    assert "p_value" in answer
    assert "permutation_p_value" not in answer
    assert answer["verdict"] == "faster"
    assert answer["difference_s"] == -100
    assert answer["ratio"] == pytest.approx(120 / 220)
    assert answer["why"]["samples_ratio"] * answer["why"]["seconds_per_sample_ratio"] == (
        pytest.approx(answer["ratio"])
    )
    assert answer["scaling_efficiency"]["by_time_to_train"] == pytest.approx(220 / 240)


def test_a_result_ties_with_itself(hybridperf: Callable[..., Finished], tmp_path: Path) -> None:
    folder = str(write_result(tmp_path).folder)

    done = hybridperf("compare", folder, folder)

    assert "a tie" in done.out
    assert "idle: 15.0% of device time in A, 15.0% in B" in done.out


def test_what_cannot_be_compared_is_refused(
    hybridperf: Callable[..., Finished], published: Path, tmp_path: Path
) -> None:
    ours = str(write_result(tmp_path / "ours").folder)
    bert = str(published / "acme" / "results" / "four")
    (tmp_path / "empty").mkdir()
    for arguments, code, sentence in [
        ((bert, str(tmp_path / "empty")), 4, "found none; name the folder of one result"),
        ((str(tmp_path / "nowhere"), bert), 4, "found no such folder; name one that exists"),
        ((bert, str(published)), 2, "found 2 results; name the folder of one result"),
        ((bert, ours), 2, "compare results of one benchmark"),
        ((bert,), 2, "required: B"),
    ]:
        done = hybridperf("compare", *arguments)
        assert done.code == code
        assert sentence in done.sentence


def _task(package: Package) -> dict[str, object]:
    manifest = json.loads((package.folder / "result_0.json").read_text())
    task: dict[str, object] = manifest["task"]
    return task


def test_what_differs_between_two_tasks_of_one_name_is_named(
    hybridperf: Callable[..., Finished], tmp_path: Path
) -> None:
    one, other, third = (write_result(tmp_path / name) for name in ("one", "other", "third"))
    for package, facts in ((other, {"version": 9}), (third, {"sha256": "c" * 64})):
        for number in range(5):
            edit_manifest(package, number, task=_task(one) | facts)

    version = hybridperf("compare", str(one.folder), str(other.folder))
    contents = hybridperf("compare", str(one.folder), str(third.folder))

    assert (version.code, contents.code) == (2, 2)
    assert "a result of 'resnet/laptop' of version" in version.sentence
    assert "found one of 'resnet/laptop' of version 9;" in version.sentence
    assert f"found one of 'resnet/laptop' of SHA-256 {'c' * 64};" in contents.sentence


def test_every_column_is_explained(hybridperf: Callable[..., Finished]) -> None:
    done = hybridperf("score", "--columns")

    assert done.code == 0
    assert all(f"| `{name}` | {metric.doc} |" in done.out for name, metric in METRICS.items())


def test_a_pipe_is_as_wide_as_columns_says(
    hybridperf: Callable[..., Finished], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_result(tmp_path, plan="dp=2,pp=2,schedule=1f1b,microbatches=4")
    monkeypatch.setenv("COLUMNS", "80")

    lines = hybridperf("score", str(tmp_path)).out.splitlines()

    assert max(map(len, lines)) <= 80
    monkeypatch.delenv("COLUMNS")
    assert max(map(len, hybridperf("score", str(tmp_path)).out.splitlines())) > 80


def test_page_score_and_compare_say_the_same(
    hybridperf: Callable[..., Finished], tmp_path: Path
) -> None:
    # Bootstrap intervals of these overlap; Welch's test finds a difference.
    times = {"a": [8.0, 8.2, 8.7, 9.1, 11.5], "b": [9.5, 10.9, 11.5, 11.6, 13.4]}
    folders = [
        str(write_result(tmp_path / "in", system=name, times_s=times_s).folder)
        for name, times_s in times.items()
    ]

    compared = json.loads(hybridperf("compare", *folders, "--format", "json").out)
    scores = json.loads(hybridperf("score", str(tmp_path / "in"), "--format", "json").out)
    hybridperf("report", str(tmp_path / "in"), "--out", str(tmp_path / "out"))
    board = json.loads((tmp_path / "out" / "leaderboard.json").read_text())["results"]
    page = (tmp_path / "out" / "index.html").read_text()

    assert compared["verdict"] == "slower"
    assert scores[0]["interval_high_s"] > scores[1]["interval_low_s"]
    for rows in (scores, board):
        assert [(row["place_best"], row["place_worst"]) for row in rows] == [(1, 1), (2, 2)]
    p_value, ratio = compared["p_value"], compared["ratio"]
    assert f"{ratio:.2f}<small>slower, p = {p_value:.3f}</small>" in page
    assert "tied" not in page.split("</table>")[0]


def test_what_converges_too_fast_has_no_place_anywhere(
    hybridperf: Callable[..., Finished], tmp_path: Path
) -> None:
    fast = write_result(tmp_path / "in", system="fast", epochs=4).folder
    slow = write_result(tmp_path / "in", system="slow", times_s=[20.0, 21.0, 22.0, 23.0, 24.0])

    scores = json.loads(hybridperf("score", str(tmp_path / "in"), "--format", "json").out)
    hybridperf("report", str(tmp_path / "in"), "--out", str(tmp_path / "out"))
    board = json.loads((tmp_path / "out" / "leaderboard.json").read_text())["results"]
    compared = json.loads(
        hybridperf("compare", str(slow.folder), str(fast), "--format", "json").out
    )

    why = "converges faster than the reference allows (reference point at this batch size)"
    for rows in (scores, board):
        places = {row["system"]: (row["place_best"], row["no_place"]) for row in rows}
        assert places == {"fast": (None, why), "slow": (1, "")}
    assert (
        f'<small class="reason">no place: {why}</small>'
        in (tmp_path / "out" / "index.html").read_text()
    )
    assert f"B: no official score and no place: {why}" in compared["notes"]


@pytest.mark.parametrize("mode", ["rules", "compat"])
def test_of_a_published_round_both_verdicts_on_convergence_are_said(
    hybridperf: Callable[..., Finished],
    tmp_path: Path,
    rcp_set: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
) -> None:
    judge_made_up(monkeypatch)
    root = tmp_path / "training_results_v4.1"
    write_round(root, [log_lines(100.0 + run, samples=2_420_000) for run in range(10)])
    write_round(root, [log_lines(100.0 + run) for run in range(10)], system="slow")
    command = ("score", str(root), "--rcp-set", str(rcp_set), "--rcp", mode)

    fast, slow = json.loads(hybridperf(*command, "--json").out)
    text = hybridperf(*command).out

    assert fast["rcp_both"] == "by the rules: fails; MLPerf's tool: passes with 1.0468"
    assert slow["rcp_both"].count("passes with 1.0133") == 2
    assert (fast["official_minutes"] is None) is (mode == "rules")
    assert f"acme eight bert: {fast['rcp_both']}" in text
    assert "same verdict by the rules and by MLPerf's tool: 1 of 2" in text


@pytest.mark.parametrize(
    ("folder", "link"), [("round", "training_results_v2.1"), ("training_results_v2.1", "round")]
)
def test_a_round_keeps_its_name_behind_a_link(
    hybridperf: Callable[..., Finished],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    folder: str,
    link: str,
) -> None:
    judge_made_up(monkeypatch)
    write_round(tmp_path / "data" / folder, [log_lines(100.0 + run) for run in range(10)])
    (tmp_path / link).symlink_to(tmp_path / "data" / folder)

    for path in (tmp_path / link, tmp_path / link / "acme"):
        (row,) = json.loads(hybridperf("score", str(path), "--format", "json").out)
        assert (row["rcp_mode"], row["rcp_factor"]) == ("published", 1)
