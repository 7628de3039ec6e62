from __future__ import annotations

import json
import os
import stat
import tarfile
from pathlib import Path

import pytest

from hybridperf.findings import visible
from hybridperf.log.reader import read_log
from hybridperf.log.writer import LogWriter
from hybridperf.rules.check import check_path
from hybridperf.untrusted import LINE_CAP_BYTES, parse_object, read_bounded

_ROUNDS = Path(__file__).parents[3] / "shared" / "data" / "mlperf_rounds.tar.xz"
_PLAIN = {
    "namespace": "",
    "time_ms": 1,
    "event_type": "POINT_IN_TIME",
    "key": "seed",
    "value": 1,
    "metadata": {},
}


def _line(**fields: object) -> str:
    return f":::MLLOG {json.dumps(_PLAIN | fields)}\n"


def _with_value(text: str) -> str:
    return _line(value="VALUE").replace('"VALUE"', text)


HOSTILE = {
    "NaN": _with_value("NaN").encode(),
    "Infinity": _with_value("Infinity").encode(),
    "-Infinity": _with_value("-Infinity").encode(),
    "a float beyond all floats": _with_value("1e400").encode(),
    "an integer of 5000 digits": _with_value("9" * 5000).encode(),
    "an integer of 21 digits": _with_value("9" * 21).encode(),
    "a value twice": _with_value('0.1, "value": 0.99').encode(),
    "a key twice, deep inside": _with_value('{"a": 1, "a": 2}').encode(),
    "lists in 100000 lists": _with_value("[" * 30_000 + "]" * 30_000).encode(),
    "objects in 17 objects": _with_value('{"a":' * 17 + "1" + "}" * 17).encode(),
    "brackets that never close": _with_value("[" * 60_000).encode(),
    "Latin-1": _line().replace("seed", "caf\xe9").encode("latin-1"),
    "half a UTF-8 character": b":::MLLOG \xc3\n",
    "NUL in a string": _line().replace("seed", "se\0ed").encode(),
    "NUL after the object": _line().strip().encode() + b"\0\n",
    "a byte order mark": _line().replace("{", "\ufeff{", 1).encode(),
    "70 KiB": _line(value="x" * 70 * 1024).encode(),
    "a number": b":::MLLOG 5\n",
    "a list": b":::MLLOG []\n",
    "nothing": b":::MLLOG\n",
    "half a line": _line()[:40].encode() + b"\n",
    "no metadata": _line(metadata=None).encode(),
    "no time": _line(time_ms=None).encode(),
    "time that is true": _line(time_ms=True).encode(),
    "time with a fraction": _line(time_ms=1.5).encode(),
    "a key that is a list": _line(key=[]).encode(),
    "an unknown event": _line(event_type="RUMOUR").encode(),
    "single quotes": b":::MLLOG {'key': 1}\n",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_line_is_one_finding_with_its_number(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(_line().encode() + content + _line(value=2).encode())

    log = read_log(path)

    (finding,) = log.findings
    assert (finding.rule, finding.line) == ("log.line", 2)
    assert finding.sentence.isprintable()
    assert [entry.value for entry in log.entries] == [1, 2]


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_checked_without_a_traceback(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(content)

    verdict = check_path(path)

    assert not verdict.valid
    assert "log.line" in {finding.rule for finding in verdict.findings}


def test_an_empty_file_is_read_and_is_not_valid(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.touch()

    assert read_log(path).entries == []
    assert not check_path(path).valid


def test_what_is_no_regular_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "target").write_text(_line())
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")

    for name in ("link", "folder", "pipe", "absent", "null\0byte"):
        log = read_log(tmp_path / name)

        assert [finding.rule for finding in log.findings] == ["log.file"], name
        assert log.findings[0].sentence.isprintable()
        assert log.entries == []
        assert log.sha256 == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_a_finding(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(_line())
    path.chmod(0)

    assert [finding.rule for finding in read_log(path).findings] == ["log.file"]


def test_a_file_over_the_cap_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    with path.open("wb") as file:
        file.truncate(64 * 2**20 + 1)  # sparse

    assert [finding.rule for finding in read_log(path).findings] == ["log.file"]


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text(_line())
    os.mkfifo(tmp_path / "pipe")
    paths = [tmp_path, tmp_path / "pipe", tmp_path / "log.txt", tmp_path / "absent"]

    before = len(list(Path("/proc/self/fd").iterdir()))
    for path in paths * 3:
        read_log(path)

    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_devices_are_not_read() -> None:
    assert stat.S_ISCHR(Path("/dev/zero").stat().st_mode)

    with pytest.raises(ValueError, match="not a regular file"):
        read_bounded(Path("/dev/zero"), 10)


def test_other_output_between_the_lines_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    with LogWriter(path) as writer:
        writer.point("seed", 1)
    with path.open("ab") as file:
        file.write(b"Epoch 1: 93 %\r\n\xff\xfe not text\n" + b"x" * 200_000 + b"\n")
    with LogWriter(path) as writer:
        writer.point("seed", 2)

    log = read_log(path)

    assert log.findings == []
    assert log.chained
    assert [(entry.value, entry.line) for entry in log.entries] == [(1, 1), (2, 5)]


def test_what_stands_before_the_token_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(f"[rank 0] {_line()}")

    log = read_log(path)

    assert log.findings == []
    assert [entry.key for entry in log.entries] == ["seed"]


def test_a_line_of_the_longest_allowed_length_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    room = LINE_CAP_BYTES - len(_line(value="")) + len(":::MLLOG ") - 1
    path.write_text(_line(value="x" * room))
    longest = read_log(path)
    path.write_text(_line(value="x" * (room + 2)))
    too_long = read_log(path)

    assert longest.findings == []
    assert [finding.rule for finding in too_long.findings] == ["log.line"]


def test_first_last_and_all_entries_of_a_key(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(_line(value=1) + _line(value=2) + _line(key="other"))

    log = read_log(path)

    assert [entry.value for entry in log.all("seed")] == [1, 2]
    assert (first := log.first("seed")) is not None
    assert first.value == 1
    assert log.value("seed") == 2
    assert log.first("absent") is log.value("absent") is None


def test_depth_is_counted_outside_of_strings_only() -> None:
    text = json.dumps({"value": '[{"\\[[' * 50})

    assert parse_object(text) == {"value": '[{"\\[[' * 50}


def test_control_and_bidirectional_characters_of_keys_are_shown_escaped(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(_line(event_type="\x1b[31m\u202egnirts"))

    (finding,) = read_log(path).findings

    assert "\x1b" not in finding.sentence
    assert "\u202e" not in finding.sentence
    assert "\\x1b" in finding.sentence
    assert visible(finding.sentence) == finding.sentence


def test_published_mlperf_logs_without_hashes_are_read_in_full(tmp_path: Path) -> None:
    if not _ROUNDS.exists():
        pytest.skip(f"no MLPerf logs at {_ROUNDS}")
    path = tmp_path / "result_0.txt"
    with tarfile.open(_ROUNDS) as archive:
        member = next(each for each in archive if each.name.endswith("/bert/result_0.txt"))
        file = archive.extractfile(member)
        assert file is not None
        path.write_bytes(file.read())

    log = read_log(path)

    assert log.findings == []
    assert not log.chained
    assert len(log.entries) == path.read_bytes().count(b":::MLLOG")
    assert log.first("run_stop") is not None
