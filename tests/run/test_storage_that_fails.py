"""Disks that are full or read-only, and results that somebody edited."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.cli import main
from hybridperf.rules.evidence import encoded
from hybridperf.run import attempt, files, run_set
from hybridperf.run.rescore import Rescoring
from hybridperf.system.describe import describe
from hybridperf.tasks.data import load
from tests.run.conftest import FAULTY, OPEN, Bench, find, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hybridperf.run.spec import RunSpec


@pytest.fixture
def trained(bench: Bench) -> bytes:
    """A run in ``bench`` that was trained, but neither scored again nor sealed: its log."""
    process = bench.start(FAULT="predict hangs")
    wait_until(lambda: find(bench.out, "ending.json"))
    process.kill()
    process.communicate()
    wait_until(lambda: not bench.processes_left())
    return next(bench.out.rglob("log.txt")).read_bytes()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


class Saboteur:
    """Counts the steps of writing files, and fails one of them."""

    def __init__(self, fail_at: int) -> None:
        self.steps = 0
        self.fail_at = fail_at

    def step(self, action: Callable[..., Any]) -> Callable[..., Any]:
        def sabotaged(*arguments: Any, **keywords: Any) -> Any:
            self.steps += 1
            if self.steps == self.fail_at:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return action(*arguments, **keywords)

        return sabotaged

    @contextlib.contextmanager
    def open(self, descriptor: int, mode: str) -> Iterator[SimpleNamespace]:
        with os.fdopen(descriptor, mode, buffering=0) as file:
            write = self.step(file.write)
            yield SimpleNamespace(write=write, flush=file.flush, fileno=file.fileno)

    def sabotage(self, patch: pytest.MonkeyPatch) -> None:
        system = SimpleNamespace(**vars(os))
        for name in ("fsync", "fchmod"):
            setattr(system, name, self.step(getattr(os, name)))
        system.fdopen = self.open
        patch.setattr(files, "os", system)
        temporary = SimpleNamespace(**vars(tempfile))
        temporary.mkstemp = self.step(tempfile.mkstemp)
        patch.setattr(files, "tempfile", temporary)
        patch.setattr(Path, "replace", self.step(Path.replace))


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    files.write_atomically(path, b"old")
    seen = []
    for fail_at in range(1, 20):
        saboteur = Saboteur(fail_at)
        with pytest.MonkeyPatch.context() as patch:
            saboteur.sabotage(patch)
            try:
                files.write_atomically(path, b"new")
            except OSError:
                seen.append(path.read_bytes())
                path.write_bytes(b"old")
        assert list(tmp_path.iterdir()) == [path]
        if saboteur.steps < fail_at:
            break
    assert seen == [b"old"] * 5 + [b"new"]  # the folder is synced last
    assert path.read_bytes() == b"new"


def _scored(spec: RunSpec, *_: object) -> Rescoring:
    """Score a model that takes ten images for others, without a process."""
    classes = load(spec.task().data).evaluation.labels.copy()
    classes[:10] = (classes[:10] + 1) % 10
    spec.final_predictions.write_bytes(encoded(classes))
    quality = float(1 - 10 / len(classes))
    return Rescoring(quality, quality, 0.0034)


def test_a_disk_full_at_any_step_of_sealing_loses_nothing(
    bench: Bench,
    trained: bytes,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_set, "describe_with_torch", describe)
    monkeypatch.setattr(attempt, "rescore", _scored)
    pristine = bench.out.rename(bench.out.with_name("pristine"))
    command = [
        "run",
        "resnet/laptop",
        "--trainer",
        FAULTY,
        *OPEN,
        "--runs",
        "1",
        "--out",
        str(bench.out),
    ]
    for fail_at in range(1, 40):
        shutil.copytree(pristine, bench.out)
        saboteur = Saboteur(fail_at)
        with pytest.MonkeyPatch.context() as patch:
            saboteur.sabotage(patch)
            code = main(command)
        said = capsys.readouterr().err.splitlines()
        bench.assert_consistent()
        if saboteur.steps < fail_at:
            break
        assert code == 4
        assert said[-1].startswith("hybridperf: ")
        assert "found No space left on device; free some space and give the same" in said[-1]
        assert main(command) == 0
        capsys.readouterr()
        bench.assert_settled()
        assert bench.outcomes() == ["success"]
        assert next(bench.out.rglob("result_0.txt")).read_bytes() == trained
        shutil.rmtree(bench.out)
    assert fail_at > 24  # four files, six steps each
    assert code == 0


def test_a_disk_that_is_really_full_loses_nothing(
    bench: Bench, trained: bytes, small_disk: Path
) -> None:
    shutil.move(bench.out, small_disk / "out")
    bench.out = small_disk / "out"
    filler = small_disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            continue
    done = bench.run()
    assert done.code == 4
    assert "found No space left on device; free some space and give the same" in done.sentence
    bench.assert_consistent()
    filler.unlink()
    done = bench.run()
    assert done.code == 0, done.out[-700:]
    bench.assert_settled()
    assert bench.outcomes() == ["success"]
    assert next(bench.out.rglob("result_0.txt")).read_bytes() == trained


def test_a_run_whose_disk_fills_up_is_sealed_and_made_again(bench: Bench, small_disk: Path) -> None:
    bench.out = small_disk / "out"
    done = bench.strike("fill the disk")
    assert done.code == 4
    assert "environment: No space left on device in the folder of the run" in done.sentence
    bench.assert_settled()
    assert bench.outcomes() == ["environment"]
    bench.assert_goes_on()


def test_a_read_only_folder_is_refused(bench: Bench, small_disk: Path) -> None:
    bench.out = small_disk / "out"
    assert bench.run().code == 0
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    done = bench.run(runs=2)
    assert done.code == 4
    assert "found Read-only file system; choose a writable folder with --out" in done.sentence
    assert bench.say("check", str(bench.out)).code == 0


@pytest.mark.parametrize(
    ("edit", "rule"),
    [
        (lambda text: text.replace('"value": 0.96', '"value": 0.99'), "log.chain"),
        (lambda text: text.replace('"key": "init_stop"', '"key": "init_stop', 1), "log.line"),
        (lambda text: "".join(text.splitlines(keepends=True)[:-3]), "run.manifest"),
        (lambda text: text[:-40], "log.line"),
    ],
)
def test_an_edited_log_is_invalid(
    finished_run: Path, edit: Callable[[str], str], rule: str
) -> None:
    (log,) = finished_run.rglob("result_0.txt")
    before = log.read_text()
    after = edit(before)
    log.write_text(after)
    place = next(
        number
        for number, (old, new) in enumerate(
            zip(before.splitlines(), [*after.splitlines(), "", "", ""], strict=False), start=1
        )
        if old != new
    )
    findings = _check(finished_run)
    assert rule in {finding["rule"] for finding in findings}
    if rule.startswith("log."):
        assert place in {finding["line"] for finding in findings if finding["rule"] == rule}
    assert "run.manifest" in {finding["rule"] for finding in findings}


@pytest.mark.parametrize("damage", ["gone", "not json", "no outcome"])
def test_a_damaged_manifest_is_refused_not_built_upon(
    finished_run: Path,
    damage: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_set, "describe_with_torch", describe)
    (manifest,) = finished_run.rglob("result_0.json")
    if damage == "gone":
        manifest.unlink()
    elif damage == "not json":
        manifest.write_text("{")
    else:
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"outcome": "won"}))
    code = main(
        [
            "run",
            "resnet/laptop",
            "--trainer",
            FAULTY,
            *OPEN,
            "--runs",
            "2",
            "--out",
            str(finished_run),
        ]
    )
    assert code == 3
    said = capsys.readouterr().err
    assert "expected a manifest beside the log" in said
    assert len(list(finished_run.rglob("result_*.txt"))) == 1


def _check(out: Path) -> list[dict[str, Any]]:
    from hybridperf.rules.check import check_path

    verdict = check_path(out)
    assert not verdict.valid
    findings = verdict.as_json()["findings"]
    assert isinstance(findings, list)
    return findings
