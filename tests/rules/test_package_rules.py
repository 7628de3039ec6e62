"""Rules of a submission's folder, in rounds of MLPerf and of our own."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import socket
import tarfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hybridperf.findings import Severity
from hybridperf.log import submission as submissions
from hybridperf.log.chain import parse_sums
from hybridperf.log.package import find_results
from hybridperf.log.submission import submissions_of, walk
from hybridperf.rules.check import check_path
from tests.packages import log_path, seal, write_result
from tests.rules.round_folder import (
    ORG,
    RESULT,
    SCRIPTS,
    SYSTEM,
    SYSTEM_FILE,
    findings,
    write_submission,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    Edit = Callable[[Path], object]

ERROR, WARNING = Severity.ERROR, Severity.WARNING
OURS = "acme/results/laptop/resnet-laptop"


@pytest.fixture
def round_(tmp_path: Path) -> Path:
    return write_submission(tmp_path.resolve())


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("valid")
    write_result(root)
    return root


@pytest.fixture
def ours(valid: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(valid, tmp_path / "ours"))


def test_a_complete_submission_has_no_findings(round_: Path) -> None:
    assert findings(round_) == []
    assert findings(round_ / RESULT) == []


def _add(name: str, content: bytes = b"x\n") -> Edit:
    def edit(root: Path) -> None:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    return edit


def _remove(name: str) -> Edit:
    def edit(root: Path) -> None:
        path = root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return edit


def _link(name: str, target: str) -> Edit:
    return lambda root: (root / name).symlink_to(target)


def _move(name: str, to: str) -> Edit:
    return lambda root: (root / name).rename(root / to)


def _socket(root: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        before = Path.cwd()
        os.chdir(root / ORG)  # a socket's path is short
        try:
            server.bind("socket")
        finally:
            os.chdir(before)


def _large(root: Path) -> None:
    with (root / ORG / "README.md").open("wb") as file:
        file.truncate(60_000_000)


def _zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("result_0.txt", "x")
    return buffer.getvalue()


def _tar() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("result_0.txt"))
    return buffer.getvalue()


_IN_ROUNDS: dict[str, tuple[Edit, str, Severity]] = {
    "a link to a file": (_link(f"{RESULT}/power", "result_0.txt"), "package.kind", ERROR),
    "a link to nothing": (_link(f"{ORG}/README.md", "absent"), "package.kind", ERROR),
    "a link to a folder of results": (
        _link(f"{ORG}/results/{SYSTEM}/bert", "resnet"),
        "package.kind",
        ERROR,
    ),
    "a link in the code": (_link(f"{SCRIPTS}/link.sh", "setup.sh"), "package.kind", WARNING),
    "a pipe": (lambda root: os.mkfifo(root / RESULT / "pipe"), "package.kind", ERROR),
    "a socket": (_socket, "package.kind", ERROR),
    "a hidden file": (_add(f"{RESULT}/.notes"), "package.names", ERROR),
    "a hidden file in the code": (_add(f"{SCRIPTS}/.gitignore"), "package.names", WARNING),
    "a space": (_add(f"{ORG}/benchmarks/read me"), "package.names", WARNING),
    "a reserved name": (_add(f"{SCRIPTS}/aux.sh"), "package.names", WARNING),
    "a name that turns around": (_add(f"{SCRIPTS}/a\u202egpj.sh"), "package.names", WARNING),
    "case alone": (_add(f"{SCRIPTS}/Setup.sh"), "package.case", ERROR),
    "a large file": (_large, "package.size", ERROR),
    "an archive": (_add(f"{RESULT}/logs.zip"), "package.archive", ERROR),
    "something beside the layout": (_add(f"{ORG}/notes/a.txt"), "package.stray", WARNING),
    "another file in systems": (_add(f"{ORG}/systems/a.txt"), "package.stray", WARNING),
    "a file above the results": (_add(f"{ORG}/results/a.txt"), "package.stray", WARNING),
    "another file in a result": (_add(f"{RESULT}/notes.txt"), "package.stray", WARNING),
    "an editor's copy of a log": (_add(f"{RESULT}/result_0.txt~"), "package.stray", WARNING),
    "what a desktop left": (_add(f"{ORG}/.DS_Store"), "package.stray", WARNING),
    "a log that nobody reads": (_add(f"{RESULT}/Result_7.text"), "package.stray", ERROR),
    "a folder without logs": (
        _add(f"{ORG}/results/{SYSTEM}/bert/power/a"),
        "package.logs",
        WARNING,
    ),
    "a description without results": (
        lambda root: shutil.copy(root / SYSTEM_FILE, root / ORG / "systems" / "other.json"),
        "package.unused",
        WARNING,
    ),
    "no code at all": (_remove(f"{ORG}/benchmarks"), "package.code", WARNING),
    "code of another benchmark": (
        _remove(f"{ORG}/benchmarks/resnet/implementations"),
        "package.code",
        ERROR,
    ),
    "no scripts of the system": (_remove(SCRIPTS), "package.code", WARNING),
    "no script that runs it": (_remove(f"{SCRIPTS}/run_and_time.sh"), "package.code", WARNING),
}


@pytest.mark.parametrize("name", _IN_ROUNDS)
def test_a_change_to_a_rounds_folder_is_found_by_one_rule(round_: Path, name: str) -> None:
    edit, rule, severity = _IN_ROUNDS[name]
    edit(round_)

    (finding,) = findings(round_)

    assert (finding.rule, finding.severity) == (rule, severity)
    assert finding.path.startswith(f"{ORG}/")
    assert finding.sentence.isprintable()


def test_a_gap_in_the_numbers_is_named(round_: Path) -> None:
    _move(f"{RESULT}/result_2.txt", f"{RESULT}/result_9.txt")(round_)

    (finding,) = findings(round_)

    assert (finding.rule, finding.severity) == ("package.numbers", WARNING)
    assert finding.expected == "result_2.txt, as there is result_9.txt"


def test_logs_may_be_numbered_from_1_or_by_time(round_: Path) -> None:
    _move(f"{RESULT}/result_0.txt", f"{RESULT}/result_5.txt")(round_)
    assert findings(round_) == []

    _move(f"{RESULT}/result_5.txt", f"{RESULT}/result_221014125755_05.txt")(round_)
    assert findings(round_) == []


def test_results_without_a_description_are_an_error(round_: Path) -> None:
    _remove(SYSTEM_FILE)(round_)

    found = {finding.rule: finding.severity for finding in findings(round_)}

    assert found == {"package.described": ERROR, "checker.descriptions": ERROR}


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (_zip(), "a zip"),
        (_tar(), "a tar"),
        (gzip.compress(b"x", mtime=0), "a gzip"),
        (b"BZh9", "a bzip2"),
    ],
    ids=["zip", "tar", "gzip", "bzip2"],
)
def test_an_archive_is_known_by_its_first_bytes(round_: Path, content: bytes, kind: str) -> None:
    (round_ / RESULT / "result_3.txt").write_bytes(content)

    (finding,) = [each for each in findings(round_) if each.rule == "package.archive"]

    assert finding.found == f"{kind} archive"
    assert finding.path == f"{RESULT}/result_3.txt"


def test_one_result_alone_is_judged_by_what_is_its_own(round_: Path) -> None:
    shutil.copytree(round_ / RESULT, round_ / ORG / "results" / "other" / "resnet")
    for name in ("notes.txt", f"results/{SYSTEM}/notes.txt", "results/other/resnet/notes.txt"):
        _add(f"{ORG}/{name}")(round_)

    assert findings(round_ / RESULT) == []
    assert {each.rule for each in findings(round_)} == {
        "package.stray",
        "package.described",
        "package.code",
        "checker.descriptions",
    }


def test_the_walk_is_bounded(round_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert walk(round_ / "absent").items == ()
    monkeypatch.setattr(submissions, "ITEMS_CAP", 10)
    assert len(walk(round_).items) == 10

    (finding,) = [each for each in findings(round_) if each.rule == "package.size"]

    assert finding.found == "more than 10 files and folders"


def test_deep_folders_are_left_out_and_named(round_: Path) -> None:
    deep = round_ / SCRIPTS / "/".join("a" * 40)
    deep.mkdir(parents=True)

    (finding,) = findings(round_)

    assert finding.rule == "package.size"
    assert finding.found == "folders more than 24 deep"


_WILD = [
    b"\xff\xfe.txt",
    b"a\nb.txt",
    b"\x1b[2J.txt",
    "\u202etxt.exe".encode(),
    "\u0130I.txt".encode(),
    b"a" * 255,
    b"result_\x00.txt".replace(b"\x00", b"\x01"),
    b"'; --.json",
    b"=cmd()",
    b"-rf",
]


@pytest.mark.parametrize("name", _WILD, ids=repr)
@pytest.mark.parametrize("folder", ["", "systems", "results", f"results/{SYSTEM}", "resnet"])
def test_no_name_stops_the_checker(round_: Path, name: bytes, folder: str) -> None:
    above = round_ / RESULT if folder == "resnet" else round_ / ORG / folder
    (above / os.fsdecode(name)).mkdir()
    (above / os.fsdecode(name[::-1])).touch()

    found = findings(round_)

    assert found
    for finding in found:
        assert finding.sentence.isprintable()
        assert finding.path.isprintable()
        assert len(finding.sentence) < 2_000


# Our own submissions.


def _hide(name: str, *, folder: bool = False) -> Edit:
    path = f"{OURS}/{name}"
    return (lambda root: (root / path).mkdir()) if folder else _add(path)


@pytest.mark.parametrize("name", [".lock", ".output_3.txt", ".result_1.json.a1b2"])
def test_what_the_harness_keeps_for_itself_is_no_finding(ours: Path, name: str) -> None:
    _add(f"{OURS}/{name}")(ours)

    assert check_path(ours).findings == ()


_IN_OURS: dict[str, tuple[Edit, str, Severity]] = {
    "a number with a zero": (_add(f"{OURS}/result_02.txt"), "package.stray", ERROR),
    "another file": (_add(f"{OURS}/notes.txt"), "package.stray", WARNING),
    "a folder": (_hide("power", folder=True), "package.stray", WARNING),
    "code": (_add("acme/benchmarks/train.py"), "package.stray", WARNING),
    "an attempt that is not sealed": (_hide(".attempt_5", folder=True), "package.stray", WARNING),
    "a hidden file": (_add(f"{OURS}/.notes"), "package.names", ERROR),
    "a link": (_link(f"{OURS}/again", "."), "package.kind", ERROR),
    "an archive": (_add("acme/systems/laptop.json.gz"), "package.archive", ERROR),
    "no list of hashes": (_remove(f"{OURS}/SHA256SUMS"), "package.sums", WARNING),
}


@pytest.mark.parametrize("name", _IN_OURS)
def test_a_change_to_our_folder_is_found(ours: Path, name: str) -> None:
    edit, rule, severity = _IN_OURS[name]
    edit(ours)

    verdict = check_path(ours)

    assert (rule, severity) in {(each.rule, each.severity) for each in verdict.findings}
    assert {each.rule for each in verdict.findings} <= {rule, "package.sums", "package.stray"}
    assert all(each.sentence.isprintable() for each in verdict.findings)


_SUMS: dict[str, tuple[Callable[[str], str], str]] = {
    "no hash": (lambda text: text.replace("  ", " x", 1), "not a SHA-256"),
    "a file twice": (lambda text: text + text.splitlines()[0] + "\n", "again"),
    "a file left out": (lambda text: text.partition("\n")[2], "none"),
    "a file that is not there": (
        lambda text: text + text.splitlines()[0].replace("result_0", "result_9") + "\n",
        "no such file",
    ),
    "another hash": (lambda text: ("0" if text[0] != "0" else "1") + text[1:], "..."),
    "a file elsewhere": (
        lambda text: text + f"{'0' * 64}  ../../../systems/laptop.json\n",
        "../../../systems",
    ),
    "an absolute path": (lambda text: text + f"{'0' * 64}  /etc/passwd\n", "/etc/passwd"),
}


@pytest.mark.parametrize("name", _SUMS)
def test_a_wrong_list_of_hashes_is_an_error(ours: Path, name: str) -> None:
    edit, found = _SUMS[name]
    path = ours / OURS / "SHA256SUMS"
    path.write_text(edit(path.read_text()))

    (finding,) = check_path(ours).findings

    assert (finding.rule, finding.severity) == ("package.sums", ERROR)
    assert found in finding.found
    assert finding.path == f"{OURS}/SHA256SUMS"


def test_every_edited_byte_of_a_sealed_file_is_found(ours: Path) -> None:
    (package,) = find_results(ours)
    for path in (log_path(package, 1), package.folder / "result_3.json"):
        path.write_bytes(path.read_bytes()[:-1] + b" ")

    found = [each.found for each in check_path(ours).findings if each.rule == "package.sums"]

    assert len(found) == 2


def test_an_attempt_that_was_being_sealed_is_not_held_against_the_list(ours: Path) -> None:
    (package,) = find_results(ours)
    log = log_path(package, 4)
    (package.folder / ".attempt_4").mkdir()
    log.unlink()

    assert {each.rule for each in check_path(ours).findings} == {
        "package.stray",
        "result.run_count",
    }


def test_the_list_is_what_sha256sum_reads(ours: Path) -> None:
    seal(ours)
    text = (ours / OURS / "SHA256SUMS").read_text()

    assert len(parse_sums(text)) == 10
    assert all(len(line.split("  ")) == 2 for line in text.splitlines())


def test_a_submission_says_what_is_its_own(round_: Path) -> None:
    (package,) = find_results(round_)
    (submission,) = submissions_of([package])

    assert submission.folder == round_ / ORG
    assert submission.place("systems") == f"{ORG}/systems"
    assert set(submission.systems) == {SYSTEM}
    assert submission.unsealed == []
