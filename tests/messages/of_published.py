"""Mistakes with a submission to a round of MLPerf."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

from tests.messages.case import OURS, ROUND, Case, asked, published
from tests.rules.mlperf.strict_logs import (
    RULESET,
    bert,
    drop,
    metadata,
    place,
    read_lines,
    where,
    write,
)
from tests.rules.mlperf.strict_logs import time as shifted
from tests.rules.mlperf.strict_logs import value as valued
from tests.rules.round_folder import ORG, RESULT, RUNS, SYSTEM_FILE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.rules.mlperf.strict_logs import Lines

    Edit = Callable[[Path], object]

_LOG = f"{RESULT}/result_2.txt"
_HOURS_MS = 2 * 3_600_000


def _lines(edit: Callable[[Lines], object], *names: str) -> Edit:
    """Edit the lines of one log, or of those with ``names``."""

    def make(folder: Path) -> None:
        for name in names or (_LOG,):
            lines = read_lines(folder / name)
            edit(lines)
            write(folder / name, lines)

    return make


def _all_lines(edit: Callable[[Lines], object]) -> Edit:
    return _lines(edit, *(f"{RESULT}/result_{number}.txt" for number in range(RUNS)))


def _text(edit: Callable[[str], str]) -> Edit:
    def make(folder: Path) -> None:
        (folder / _LOG).write_bytes(edit((folder / _LOG).read_text()).encode())

    return make


def _description(**fields: object) -> Edit:
    def make(folder: Path) -> None:
        path = folder / SYSTEM_FILE
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return make


def _bert(edit: Callable[[Lines], object]) -> Edit:
    """Write one log of BERT, to be checked alone."""

    def make(folder: Path) -> None:
        lines = bert()
        edit(lines)
        write(folder / "bert.txt", lines)

    return make


def _seconds(lines: Lines) -> None:
    for each in lines:
        each["time_ms"] /= 1000


def _other_zone(lines: Lines) -> None:
    for each in lines[place(lines, "eval_start", 1) : place(lines, "block_stop", 1)]:
        each["time_ms"] += _HOURS_MS


def _percent(lines: Lines) -> None:
    for each in lines:
        if each["key"] == "eval_accuracy":
            each["value"] *= 100


def _epochs(lines: Lines) -> None:
    for each in lines:
        for name in ("epoch_num", "first_epoch_num"):
            if name in each["metadata"]:
                each["metadata"][name] = each["metadata"][name] // 150_080
        each["metadata"].pop("epoch_count", None)


def _key(old: str, new: str) -> Callable[[Lines], object]:
    return lambda lines: where(lines, old).update(key=new)


def _concatenated(folder: Path) -> None:
    (folder / _LOG).write_text(
        (folder / _LOG).read_text() + (folder / RESULT / "result_3.txt").read_text()
    )


def _copied(folder: Path) -> None:
    shutil.copy(folder / RESULT / "result_1.txt", folder / _LOG)


def _into(benchmark: str) -> Edit:
    def make(folder: Path) -> None:
        (folder / RESULT).rename((folder / RESULT).with_name(benchmark))

    return make


def _printed(text: str) -> str:
    """Write a line as Python prints a dictionary."""
    lines = text.splitlines(keepends=True)
    token, space, payload = lines[3].partition(" ")
    lines[3] = f"{token}{space}{json.loads(payload)}\n"
    return "".join(lines)


def _interleaved(text: str) -> str:
    """Let two processes write into one line."""
    lines = text.splitlines(keepends=True)
    half = len(lines[9]) // 2
    lines[9] = f"{lines[9][:half]}{lines[10].rstrip()}{lines[9][half:]}"
    return "".join([*lines[:10], *lines[11:]])


def _two_statuses(lines: Lines) -> None:
    where(lines, "submission_status").update(value="on-prem")


OF_PUBLISHED: list[Case] = [
    published("mlperf_valid", "Nothing is wrong.", lambda folder: folder),
    published(
        "mlperf_typo_in_key", "A key is misspelt.", _lines(_key("train_samples", "train_sample"))
    ),
    published("mlperf_run_missing", "One run is missing.", lambda folder: (folder / _LOG).unlink()),
    published("mlperf_copied_run", "A run is copied over another.", _copied),
    published("mlperf_two_runs_in_one_log", "Two runs are concatenated.", _concatenated),
    published(
        "mlperf_division_misspelt",
        "The division is misspelt in the logs.",
        _all_lines(valued("submission_division", "close")),
    ),
    published(
        "mlperf_wrong_division",
        "The logs say open, the description says closed.",
        _all_lines(valued("submission_division", "open")),
    ),
    published(
        "mlperf_status_misspelt",
        "The status of run_stop is misspelt.",
        _lines(metadata("run_stop", status="sucess")),
    ),
    published(
        "mlperf_category_misspelt",
        "The category is misspelt in the logs.",
        _all_lines(_two_statuses),
    ),
    published("mlperf_seconds_for_milliseconds", "Times are in seconds.", _lines(_seconds)),
    published("mlperf_percent_for_fraction", "Accuracies are in percent.", _lines(_percent)),
    published(
        "mlperf_epochs_for_samples",
        "A log of BERT counts evaluations where the rules count samples.",
        _bert(_epochs),
        f"{ROUND}/bert.txt",
    ),
    published(
        "mlperf_batch_as_text",
        "The batch size is text.",
        _lines(valued("global_batch_size", "3264")),
    ),
    published(
        "mlperf_other_batch",
        "One run has another batch size.",
        _lines(valued("global_batch_size", 1632)),
    ),
    published("mlperf_no_seeds", "No seeds are logged.", _all_lines(drop("seed"))),
    published("mlperf_same_seed", "All runs have one seed.", _all_lines(valued("seed", 42))),
    published("mlperf_no_cache_clear", "Caches are not cleared.", _all_lines(drop("cache_clear"))),
    published(
        "mlperf_target_missed",
        "A run stops below the target.",
        _lines(valued("eval_accuracy", 0.7589, 2)),
    ),
    published(
        "mlperf_evaluation_left_out",
        "An evaluation is left out.",
        _lines(
            lambda lines: [drop(f"eval_{part}", 1)(lines) for part in ("start", "accuracy", "stop")]
        ),
    ),
    published("mlperf_other_time_zone", "One process has another time zone.", _lines(_other_zone)),
    published(
        "mlperf_stopped_before_start",
        "run_stop has the time of the day before.",
        _lines(shifted("run_stop", -24 * 3_600_000)),
    ),
    published(
        "mlperf_wrong_benchmark_folder", "ResNet's logs are in BERT's folder.", _into("bert")
    ),
    published("mlperf_folder_misspelt", "The folder's name is misspelt.", _into("resnet50")),
    published(
        "mlperf_description_missing",
        "The system's description is forgotten.",
        lambda folder: (folder / SYSTEM_FILE).unlink(),
    ),
    published(
        "mlperf_description_no_json",
        "The description is cut off.",
        lambda folder: (folder / SYSTEM_FILE).write_text('{"submitter": "acme'),
    ),
    published(
        "mlperf_number_with_unit",
        "A number in the description has a unit.",
        _description(accelerators_per_node="8 GPUs"),
    ),
    published(
        "mlperf_category_of_description",
        "The description's category is misspelt.",
        _description(status="on-prem"),
    ),
    published(
        "mlperf_code_missing",
        "The code is forgotten.",
        lambda folder: shutil.rmtree(folder / ORG / "benchmarks"),
    ),
    published("mlperf_truncated_log", "A log ends in the middle.", _text(lambda text: text[:4000])),
    published("mlperf_empty_log", "A log is empty.", _text(lambda _text: "")),
    published("mlperf_python_dictionary", "A line is no JSON but Python.", _text(_printed)),
    published("mlperf_interleaved", "Two processes write into one line.", _text(_interleaved)),
    published(
        "mlperf_unreadable_log", "Nobody may read a log.", lambda folder: (folder / _LOG).chmod(0)
    ),
    published(
        "mlperf_windows_line_ends",
        "A log has Windows line ends, which is fine.",
        _text(lambda text: text.replace("\n", "\r\n")),
    ),
    published(
        "mlperf_other_benchmark",
        "A log is of a benchmark that is not judged here.",
        _bert(valued("submission_benchmark", "ssd")),
        f"{ROUND}/bert.txt",
    ),
    published(
        "mlperf_token_misspelt",
        "The token is misspelt on every line.",
        _text(lambda text: text.replace(":::MLLOG", "::MLLOG")),
        f"{ROUND}/{_LOG}",
    ),
]
OF_COMMANDS: list[Case] = [
    asked("command_wrong_path", "The path is misspelt.", "check", "submision"),
    asked(
        "command_no_results_below", "A folder holds no results.", "check", f"{OURS}/acme/systems"
    ),
    asked(
        "command_wrong_ruleset", "The ruleset lacks a part.", "check", OURS, "--ruleset", "2.1.0"
    ),
    asked("command_wrong_mode", "The mode is misspelt.", "check", OURS, "--mode", "as_published"),
    asked(
        "command_mode_of_others", "Ours has no such mode.", "check", OURS, "--mode", "as-published"
    ),
    asked("command_wrong_option", "An option does not exist.", "check", OURS, "--rule", "strict"),
    asked("command_no_path", "No path is given.", "check"),
    asked("command_two_paths", "Two paths are given.", "check", OURS, ROUND),
    asked(
        "command_published_by_our_rules",
        "A log of MLPerf is checked as ours.",
        "check",
        f"{ROUND}/{_LOG}",
    ),
    asked("command_round_by_our_rules", "A round of MLPerf is checked as ours.", "check", ROUND),
    asked(
        "command_ours_by_published_rules",
        "A log of ours is checked as MLPerf's.",
        "check",
        f"{OURS}/acme/results/laptop/resnet-laptop/result_0.txt",
        "--ruleset",
        RULESET,
    ),
    asked(
        "command_node_without_nodes",
        "The number of nodes is forgotten.",
        *("run", "resnet/laptop", "--node-rank", "1", "--rendezvous", "node0:29500"),
    ),
    asked(
        "command_node_out_of_range",
        "Nodes are counted from 1.",
        *("run", "resnet/laptop", "--nodes", "2", "--node-rank", "2"),
    ),
    asked(
        "command_rendezvous_without_port",
        "The rendezvous lacks its port.",
        *("run", "resnet/laptop", "--nodes", "2", "--node-rank", "0", "--rendezvous", "node0"),
    ),
    asked("command_unknown_rule", "A rule's name is misspelt.", "check", "--explain", "log.chian"),
]

__all__ = ["OF_COMMANDS", "OF_PUBLISHED"]
