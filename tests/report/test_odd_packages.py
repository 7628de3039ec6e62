"""Packages as other submitters may write them are judged, scored and shown without a traceback."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.report.judgement import found_packages, judged_scores
from hybridperf.report.site import site_files
from hybridperf.rules.check import check_paths
from hybridperf.score.history import with_context
from hybridperf.score.metrics import row_of
from hybridperf.score.ranking import with_places
from hybridperf.score.validity import Judgement
from tests.rules.mlperf.published_rounds import published_rounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Edit = Callable[[Path], object]

ROUND = "training_results_v4.1"
RESULT = "NVIDIA/results/h200_ngc23.09_pytorch/bert"
SYSTEM = "NVIDIA/systems/h200_ngc23.09_pytorch.json"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with published_rounds(tmp_path_factory) as rounds:
        yield rounds / ROUND


@pytest.fixture
def package(published: Path, tmp_path: Path) -> Path:
    """Return the folder of a round with one published result, which may be edited."""
    root = tmp_path / ROUND
    shutil.copytree(published / RESULT, root / RESULT)
    (root / SYSTEM).parent.mkdir(parents=True)
    shutil.copy(published / SYSTEM, root / SYSTEM)
    return root


def _each_log(change: Callable[[bytes], bytes]) -> Edit:
    def edit(root: Path) -> None:
        for path in (root / RESULT).glob("result_*.txt"):
            path.write_bytes(change(path.read_bytes()))

    return edit


def _description(change: Callable[[dict[str, Any]], object]) -> Edit:
    def edit(root: Path) -> None:
        text = json.dumps(change(json.loads((root / SYSTEM).read_text())))
        (root / SYSTEM).write_text(text)

    return edit


def _bytes_of_description(change: Callable[[bytes], bytes]) -> Edit:
    return lambda root: (root / SYSTEM).write_bytes(change((root / SYSTEM).read_bytes()))


def _renamed(name: str, new: str) -> Edit:
    return lambda root: (root / name).rename((root / name).with_name(new))


def _folder_in_place_of(name: str) -> Edit:
    def edit(root: Path) -> None:
        (root / name).unlink(missing_ok=True)
        (root / name).mkdir()

    return edit


def _link_to_itself(root: Path) -> None:
    path = root / RESULT / "result_0.txt"
    path.unlink()
    path.symlink_to(path.name)


def _pipe(root: Path) -> None:
    path = root / RESULT / "result_0.txt"
    path.unlink()
    os.mkfifo(path)


def _organisation_in_bytes(root: Path) -> None:
    (root / "NVIDIA").rename(root / os.fsdecode(b"NVIDIA\xff"))


def _logs_named(pattern: str) -> Edit:
    def edit(root: Path) -> None:
        for path in (root / RESULT).glob("result_*.txt"):
            path.rename(path.with_name(path.name.replace("result_", pattern)))

    return edit


#: what is done to the package, and how many of its results are valid then
ODD: dict[str, tuple[Edit, int]] = {
    "nothing": (lambda root: root, 1),
    "logs with a byte order mark": (_each_log(lambda text: b"\xef\xbb\xbf" + text), 1),
    "logs with carriage returns": (_each_log(lambda text: text.replace(b"\n", b"\r\n")), 1),
    "logs in another encoding": (_each_log(lambda text: text + b"\x80\x93\xff\0\0\n"), 1),
    "logs with colours": (
        _each_log(lambda text: text.replace(b":::MLLOG", b"\x1b[32m0: :::MLLOG")),
        1,
    ),
    "logs without a last newline": (_each_log(bytes.rstrip), 1),
    "logs in UTF-16": (_each_log(lambda text: text.decode("latin-1").encode("utf-16")), 0),
    "logs that are archives": (_each_log(gzip.compress), 0),
    "empty logs": (_each_log(lambda _: b""), 0),
    "halves of logs": (_each_log(lambda text: text[: len(text) // 2]), 0),
    "logs by another name": (_logs_named("result_run"), 1),
    "logs with a space in their names": (_logs_named("result_ "), 1),
    "logs with a newline in their names": (_logs_named("result_\n"), 1),
    "a link to itself": (_link_to_itself, 1),  # a run that counts as the slowest
    "a pipe": (_pipe, 1),
    "no description": (lambda root: (root / SYSTEM).unlink(), 1),
    "a folder for a description": (_folder_in_place_of(SYSTEM), 1),
    "an empty description": (_bytes_of_description(lambda _: b""), 1),
    "half a description": (_bytes_of_description(lambda text: text[:-9]), 1),
    "a description in UTF-16": (_bytes_of_description(lambda t: t.decode().encode("utf-16")), 1),
    "a description with a mark": (_bytes_of_description(lambda text: b"\xef\xbb\xbf" + text), 1),
    "a description in latin-1": (_bytes_of_description(lambda t: t.replace(b"In", b"\xeen")), 1),
    "a list of descriptions": (_bytes_of_description(lambda text: b"[" + text + b"]"), 1),
    "a description of nothing": (_description(lambda facts: dict.fromkeys(facts)), 1),
    "a nested description": (_description(lambda f: {k: {"a": [v]} for k, v in f.items()}), 1),
    "huge numbers": (_description(lambda facts: facts | {"number_of_nodes": 10**400}), 1),
    "counts in words": (_description(lambda facts: facts | {"accelerators_per_node": "8 x"}), 1),
    "an organisation with a space": (_renamed("NVIDIA", "NVIDIA & Co. + X"), 1),
    "an organisation in another script": (_renamed("NVIDIA", "\u30e6\u30cb\u202eco"), 1),
    "an organisation in bytes": (_organisation_in_bytes, 1),
    "a benchmark in capitals": (_renamed(RESULT, "BERT"), 1),
    "more files": (lambda root: (root / RESULT / "compliance_checker.log").write_text("x"), 1),
    "a factor that is none": (lambda root: (root / RESULT / "scaling.json").write_text("[1]"), 1),
    "a folder for a factor": (_folder_in_place_of(f"{RESULT}/scaling.json"), 1),
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_package_is_judged_scored_and_shown(package: Path, name: str) -> None:
    edit, valid = ODD[name]
    edit(package)

    verdict, _ = check_paths([package], None, None, 1)
    strict, _ = check_paths([package], None, "strict", 1)
    results = with_context(with_places(judged_scores(found_packages([package]))))
    pages = dict(site_files(results))

    assert sum(result.judgement is Judgement.VALID for result in verdict.results) == valid
    for finding in (*verdict.findings, *strict.findings):
        assert finding.sentence.isprintable()
    assert [row_of(result)["benchmark"] for result in results]
    assert "round-4.1.html" in pages
    assert not any("\x1b" in page or "\u202e" in page for page in pages.values())
