"""Laws of judging, tried with what hypothesis draws: always the same, so that no run is unlucky."""

from __future__ import annotations

import hashlib
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hybridperf.log.package import read_result
from hybridperf.rules.check import check_path
from hybridperf.rules.verdict import Verdict
from hybridperf.score.score import score_result
from hybridperf.score.statistics import median_window, olympic_mean
from tests.packages import chained, edit_manifest, log_path, read_bodies, seal, write_result
from tests.rules.law_edits import ARBITRARY, MUTATIONS, OF_BODIES
from tests.rules.mlperf.strict_logs import RULESET, bert, resnet, value
from tests.rules.mutation import RUN
from tests.rules.round_folder import RESULT, write_submission

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hybridperf.log.package import Package
    from hybridperf.rules.check import Mode

MODES: tuple[Mode, ...] = ("as-published", "strict")
TIMES_S = (10.0, 11.0, 12.0, 13.0, 14.0)
_JUNK = st.text(st.characters(exclude_characters="\r\n"), max_size=12).filter(
    lambda text: ":::MLLOG" not in text
)
_TIMES = st.lists(st.floats(0.001, 1e6) | st.just(float("inf")), min_size=3, max_size=12)


def laws(examples: int) -> settings:
    return settings(derandomize=True, max_examples=examples)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Package:
    return write_result(tmp_path_factory.mktemp("ours"), times_s=TIMES_S)


@pytest.fixture(scope="module")
def round_(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_submission(tmp_path_factory.mktemp("round"))


@pytest.fixture(scope="module")
def texts(ours: Package, round_: Path) -> list[bytes]:
    """Return a valid log of ours, and one of MLPerf's."""
    return [log_path(ours, 0).read_bytes(), (round_ / RESULT / "result_0.txt").read_bytes()]


def _assert_total(path: Path) -> None:
    for verdict in (check_path(path), *(check_path(path, RULESET, mode) for mode in MODES)):
        _assert_presentable(verdict)


def _assert_presentable(verdict: Verdict) -> None:
    assert isinstance(verdict, Verdict)
    assert all(finding.sentence.isprintable() for finding in verdict.findings)
    assert json.dumps(verdict.as_json(), allow_nan=False)


@laws(200)
@given(text=ARBITRARY)
def test_a_log_of_anything_has_a_verdict(ours: Package, text: bytes) -> None:
    path = ours.root / "alone.txt"
    path.write_bytes(text)

    _assert_total(path)


@laws(150)
@given(mutations=MUTATIONS, edits=st.lists(OF_BODIES, max_size=2), which=st.integers(0, 1))
def test_a_log_that_was_changed_in_any_way_has_a_verdict(
    ours: Package, texts: list[bytes], mutations: list[Any], edits: list[Any], which: int
) -> None:
    path = ours.root / "alone.txt"
    path.write_bytes(texts[which])
    bodies = [line.partition(" ")[2] for line in texts[which].decode().splitlines()]
    for edit in edits:
        edit(bodies)
    text = texts[which]
    if edits:
        text = "".join(f":::MLLOG {body}\n" for body in bodies).encode()
    for mutate in mutations:
        text = mutate(text)
    path.write_bytes(text)

    _assert_total(path)


@laws(40)
@given(text=ARBITRARY, edits=st.lists(OF_BODIES, min_size=1, max_size=3))
def test_a_result_with_such_a_log_has_a_verdict(
    ours: Package, round_: Path, texts: list[bytes], text: bytes, edits: list[Any]
) -> None:
    with _restored(log_path(ours, RUN)) as path:
        path.write_bytes(text)
        _assert_presentable(check_path(ours.root))
        score_result(read_result(ours))
    with _restored(round_ / RESULT / "result_2.txt") as path:
        bodies = [line.partition(" ")[2] for line in texts[1].decode().splitlines()]
        for edit in edits:
            edit(bodies)
        path.write_text("".join(f":::MLLOG {body}\n" for body in bodies))
        for mode in MODES:
            _assert_presentable(check_path(round_, RULESET, mode))


@laws(80)
@given(mutations=MUTATIONS)
def test_no_change_of_a_sealed_log_stays_unfound(ours: Package, mutations: list[Any]) -> None:
    """Whatever is done to the bytes, also what makes no run faster."""
    with _restored(log_path(ours, RUN)) as path:
        text = sealed = path.read_bytes()
        for mutate in mutations:
            text = mutate(text)
        assume(text != sealed)
        path.write_bytes(text)

        assert not check_path(ours.root).valid


@laws(150)
@given(edits=st.lists(OF_BODIES, min_size=1, max_size=3))
def test_no_log_that_was_sealed_again_is_faster_and_valid(ours: Package, edits: list[Any]) -> None:
    """Claimed: who edits a log, chains it anew and has manifest and sums follow, is found.

    A time that is shorter by less than the clocks may differ is not told from a true one. Nor is a
    manifest that was made up as a whole, with the supervisor's time and the quality scored again:
    no chain proves who wrote it (docs/rules.md, section 2; the test below).
    """
    with _restored(log_path(ours, RUN), ours.folder / f"result_{RUN}.json") as path:
        bodies = read_bodies(path)
        for edit in edits:
            edit(bodies)
        _seal_again(ours, bodies)

        verdict, score = check_path(ours.root), score_result(read_result(ours))

    if verdict.valid:
        may_differ_s = 0.5 + 0.01 * TIMES_S[RUN]
        assert score.runs[RUN].completion == "reached"
        assert score.runs[RUN].time_to_train_s >= TIMES_S[RUN] - may_differ_s
        assert (score.olympic_mean_s or 0) >= olympic_mean(TIMES_S, 1) - may_differ_s


def test_who_makes_up_log_and_manifest_is_not_found(ours: Package) -> None:
    with _restored(log_path(ours, RUN), ours.folder / f"result_{RUN}.json") as path:
        bodies = [json.loads(body) for body in read_bodies(path)]
        start = next(each["time_ms"] for each in bodies if each["key"] == "run_start")
        for each in bodies:
            if each["time_ms"] > start:
                each["time_ms"] = start + (each["time_ms"] - start) // 2
        edit_manifest(ours, RUN, supervisor={"initialisation_s": 9.0, "run_s": TIMES_S[RUN] / 2})
        _seal_again(ours, [json.dumps(each) for each in bodies])

        assert check_path(ours.root).valid


@laws(80)
@given(
    lines=st.sampled_from([bert, resnet]),
    edit=st.sampled_from(
        [
            lambda lines: lines,
            value("cache_clear", False),
            value("eval_accuracy", "0.9", 2),
            lambda lines: lines.pop(),
            lambda lines: lines[7].update(metadata=None),
            lambda lines: lines[9].pop("key"),
        ]
    ),
    junk=st.lists(_JUNK, min_size=1, max_size=4),
    spaces=st.lists(st.sampled_from(["", " ", "\t", " \t "]), min_size=1, max_size=3),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_what_stands_around_the_lines_changes_no_verdict(
    round_: Path, lines: Any, edit: Any, junk: list[str], spaces: list[str], end: str
) -> None:
    path = round_ / "alone.txt"
    entries = lines()
    edit(entries)
    plain = [f":::MLLOG {json.dumps(entry)}" for entry in entries]
    path.write_bytes("".join(f"{line}\n" for line in plain).encode())
    verdicts = [check_path(path, RULESET, mode) for mode in MODES]

    path.write_bytes(
        "".join(
            f"{junk[place % len(junk)]}{line}{spaces[place % len(spaces)]}{end}"
            for place, line in enumerate(plain)
        ).encode()
    )

    assert [check_path(path, RULESET, mode) for mode in MODES] == verdicts


@laws(200)
@given(times_s=_TIMES, which=st.integers(0, 11), by_s=st.floats(0, 1e6), asked=st.integers(3, 12))
def test_a_slower_run_never_makes_a_better_score(
    times_s: list[float], which: int, by_s: float, asked: int
) -> None:
    slower = list(times_s)
    slower[which % len(slower)] += by_s

    assert olympic_mean(slower, 1) >= olympic_mean(times_s, 1)
    assert _windowed(slower, asked) >= _windowed(times_s, asked)


@laws(20)
@given(number=st.integers(0, 4), by_ms=st.integers(0, 10**7))
def test_a_log_that_stops_later_never_makes_a_better_score(
    ours: Package, number: int, by_ms: int
) -> None:
    with _restored(log_path(ours, number)) as path:
        bodies = read_bodies(path)
        stop = json.loads(bodies[-1])
        bodies[-1] = json.dumps(stop | {"time_ms": stop["time_ms"] + by_ms})
        path.write_text(chained(bodies))

        assert (score_result(read_result(ours)).olympic_mean_s or 0) >= olympic_mean(TIMES_S, 1)


def _windowed(times_s: list[float], asked: int) -> float:
    return olympic_mean([times_s[place] for place in median_window(times_s, asked, 1)], 1)


def _seal_again(package: Package, bodies: list[str]) -> None:
    path = log_path(package, RUN)
    path.write_text(chained(bodies))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    edit_manifest(package, RUN, log={"path": path.name, "sha256": digest})
    seal(package.root)


@contextmanager
def _restored(path: Path, *others: Path) -> Iterator[Path]:
    """Put the files, and the list of hashes beside them, back as they were."""
    files = [path, *others, *path.parent.glob("SHA256SUMS")]
    contents = [file.read_bytes() for file in files]
    try:
        yield path
    finally:
        for file, content in zip(files, contents, strict=True):
            file.write_bytes(content)
