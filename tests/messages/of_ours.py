"""Mistakes with a result of this suite."""

from __future__ import annotations

import json
import shutil
import zipfile
from typing import TYPE_CHECKING, Any

from hybridperf.log import keys
from tests.messages.case import OURS, ours
from tests.packages import edit_log, log_path, place, seal, write_result
from tests.rules.edits import cut_off, miss_two, remove, strip_hashes
from tests.rules.mutation import RUN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hybridperf.log.package import Package

    Edit = Callable[[Package], object]


def _text(edit: Callable[[str], str]) -> Edit:
    """Change a log in an editor."""

    def make(package: Package) -> None:
        path = log_path(package, RUN)
        path.write_bytes(edit(path.read_text()).encode())

    return make


def _entries(edit: Callable[[dict[str, Any]], object], *key: str) -> Edit:
    """Change lines of all logs with a script that knows about hashes."""

    def change(bodies: list[str]) -> None:
        for index, body in enumerate(bodies):
            entry = json.loads(body)
            if not key or entry["key"] in key:
                edit(entry)
            bodies[index] = json.dumps(entry)

    def make(package: Package) -> None:
        for number in range(5):
            edit_log(package, number, change)
        seal(package.root)

    return make


def _description(edit: Callable[[str], str]) -> Edit:
    def make(package: Package) -> None:
        package.system_file.write_text(edit(package.system_file.read_text()))

    return make


def _rewritten(**options: Any) -> Edit:
    """Make another result instead, with the harness."""

    def make(package: Package) -> None:
        shutil.rmtree(package.root)
        write_result(package.root, **options)

    return make


def _log_becomes(write: Callable[[Package], object]) -> Edit:
    def make(package: Package) -> None:
        log_path(package, RUN).unlink()
        write(package)

    return make


def _swap(package: Package) -> None:
    """Swap a log with that of another result."""
    other = write_result(package.root, system="desktop", times_s=(20.0, 21.0, 22.0, 23.0, 24.0))
    one, two = log_path(package, RUN), log_path(other, RUN)
    text = one.read_text()
    one.write_text(two.read_text())
    two.write_text(text)


def _copy(package: Package) -> None:
    for suffix in ("txt", "json"):
        shutil.copy(package.folder / f"result_1.{suffix}", package.folder / f"result_2.{suffix}")
    seal(package.root)


def _rename_log(name: str) -> Edit:
    def make(package: Package) -> None:
        log_path(package, RUN).rename(package.folder / name)

    return make


def _later(bodies: Sequence[str]) -> list[str]:
    """Stamp what comes after the start with the time of a zone two hours ahead."""
    entries = [json.loads(body) for body in bodies]
    start = place(bodies, keys.RUN_START)
    for entry in entries[start + 1 : place(bodies, keys.EVAL_START, 2)]:
        entry["time_ms"] += 7_200_000
    return [json.dumps(entry) for entry in entries]


def _other_zone(package: Package) -> None:
    def edit(bodies: list[str]) -> None:
        bodies[:] = _later(bodies)

    edit_log(package, RUN, edit)
    seal(package.root)


def _zipped(package: Package) -> None:
    with zipfile.ZipFile(package.root.with_name("submission.zip"), "w") as archive:
        for path in sorted(package.root.rglob("*")):
            archive.write(path, path.relative_to(package.root))


def _extra_zip(package: Package) -> None:
    with zipfile.ZipFile(package.folder / "results.zip", "w") as archive:
        archive.write(log_path(package, RUN), "result_2.txt")


def _to_ms(entry: dict[str, Any]) -> None:
    entry["time_ms"] = entry["time_ms"] // 1000


def _to_percent(entry: dict[str, Any]) -> None:
    entry["value"] = round(100 * entry["value"], 2)


def _replaced(old: str, new: str) -> Edit:
    return _text(lambda text: text.replace(old, new))


OF_OURS = [
    ours("ours_valid", "Nothing is wrong.", lambda package: package),
    ours("ours_typo_in_key", "A key is misspelt.", _replaced('"key": "seed"', '"key": "sead"')),
    ours("ours_edited_value", "The last accuracy is rounded up.", _replaced("0.982", "0.99")),
    ours(
        "ours_edited_time",
        "The last seven lines are given an earlier time.",
        _text(lambda text: text.replace('"time_ms": 1790000021000', '"time_ms": 1790000020000')),
    ),
    ours("ours_runs_missing", "Two runs were never made.", _rewritten(times_s=(10.0, 11.0, 12.0))),
    ours("ours_run_deleted", "The slowest run is deleted.", lambda package: remove(package, 4)),
    ours("ours_middle_run_deleted", "A run is deleted.", lambda package: remove(package, 2)),
    ours("ours_two_missed", "Two runs missed the target.", miss_two),
    ours("ours_copied_run", "A run is copied over another.", _copy),
    ours("ours_swapped_between_results", "Logs of two systems are swapped.", _swap),
    ours(
        "ours_wrong_division",
        "A hyperparameter is changed that the closed division fixes.",
        _rewritten(overrides={"optimizer.momentum": 0.5}),
    ),
    ours(
        "ours_division_edited",
        "The description says open, the logs say closed.",
        _description(lambda text: text.replace('"closed"', '"open"')),
    ),
    ours("ours_seconds_for_milliseconds", "Times are in seconds.", _entries(_to_ms)),
    ours(
        "ours_percent_for_fraction",
        "Accuracies are in percent.",
        _entries(_to_percent, keys.EVAL_ACCURACY),
    ),
    ours(
        "ours_samples_as_text",
        "The batch size is text with a unit.",
        _entries(lambda entry: entry.update(value="32 samples"), keys.GLOBAL_BATCH_SIZE),
    ),
    ours(
        "ours_status_misspelt",
        "The status of run_stop is misspelt.",
        _entries(lambda entry: entry["metadata"].update(status="succes"), keys.RUN_STOP),
    ),
    ours(
        "ours_wrong_benchmark_folder",
        "The folder is called after another task.",
        lambda package: package.folder.rename(package.folder.with_name("resnet-cifar10")),
    ),
    ours(
        "ours_folder_with_space",
        "A folder's name has a space in it.",
        lambda package: package.folder.parent.rename(package.folder.parent.with_name("my laptop")),
    ),
    ours(
        "ours_truncated_log", "A log ends in the middle of a line.", _text(lambda text: text[:-99])
    ),
    ours("ours_last_line_missing", "A log lacks its last line.", cut_off),
    ours("ours_windows_line_ends", "A log has Windows line ends.", _replaced("\n", "\r\n")),
    ours("ours_byte_order_mark", "A log begins with a BOM.", _text(lambda text: "\ufeff" + text)),
    ours(
        "ours_utf16",
        "A shell redirected a log in UTF-16.",
        _log_becomes(
            lambda package: log_path(package, RUN).write_text(
                log_path(package, 1).read_text(), encoding="utf-16"
            )
        ),
    ),
    ours("ours_hashes_stripped", "A tool took the hashes out.", strip_hashes),
    ours(
        "ours_two_runs_in_one_log",
        "Two runs are concatenated.",
        lambda package: log_path(package, RUN).write_text(
            log_path(package, RUN).read_text() + log_path(package, 3).read_text()
        ),
    ),
    ours("ours_other_time_zone", "A part was logged by a clock in another zone.", _other_zone),
    ours("ours_empty_log", "A log is empty.", _text(lambda _text: "")),
    ours(
        "ours_unreadable_log",
        "Nobody may read a log.",
        lambda package: log_path(package, RUN).chmod(0),
    ),
    ours(
        "ours_folder_for_log",
        "A folder stands where a log should.",
        _log_becomes(lambda package: log_path(package, RUN).mkdir()),
    ),
    ours(
        "ours_link_for_log",
        "A link stands where a log should.",
        _log_becomes(lambda package: log_path(package, RUN).symlink_to("result_1.txt")),
    ),
    ours("ours_zip_for_folder", "The submission is a zip.", _zipped, "submission.zip"),
    ours("ours_zip_beside_logs", "A zip stands beside the logs.", _extra_zip),
    ours("ours_leading_zero", "A log's number has a zero in front.", _rename_log("result_02.txt")),
    ours("ours_capital", "A log's name has a capital.", _rename_log("Result_2.txt")),
    ours("ours_other_suffix", "A log is called .log.", _rename_log("result_2.log")),
    ours(
        "ours_manifest_missing",
        "A manifest is forgotten.",
        lambda package: (package.folder / "result_2.json").unlink(),
    ),
    ours(
        "ours_sums_missing",
        "SHA256SUMS is forgotten.",
        lambda package: (package.folder / "SHA256SUMS").unlink(),
    ),
    ours(
        "ours_description_missing",
        "The system's description is forgotten.",
        lambda package: package.system_file.unlink(),
    ),
    ours(
        "ours_description_no_json",
        "A comma is missing in the description.",
        _description(lambda text: text.replace('", "division"', '" "division"')),
    ),
    ours(
        "ours_one_log_alone",
        "A log that was edited is checked alone.",
        _replaced('"value": 1002', '"value": 7'),
        f"{OURS}/acme/results/laptop/resnet-laptop/result_2.txt",
    ),
    ours(
        "ours_no_log_at_all",
        "The description is given in place of a log.",
        lambda package: package,
        f"{OURS}/acme/systems/laptop.json",
    ),
]

__all__ = ["OF_OURS"]
