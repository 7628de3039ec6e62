"""The code that ranks imported is beside what installers recorded, and named where it is not."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from hybridperf.run import provenance
from hybridperf.run.provenance import file_sha256, import_facts

if TYPE_CHECKING:
    import pytest

    from tests.run.conftest import Bench

OWN = ("hybridperf", "tests.trainers.faulty")


def elsewhere(files: dict[str, str]) -> Any:
    return import_facts(files, OWN)["elsewhere"]


def test_code_of_packages_of_python_and_of_what_is_hashed_is_not_listed() -> None:
    files = {"numpy": np.__file__, "psutil": psutil.__file__, "json": json.__file__}
    files |= {
        "own": provenance.__file__,
        "trainer": str(Path(__file__).parents[1] / "trainers/faulty/train.py"),
    }

    assert elsewhere({name: str(file) for name, file in files.items()}) == {}


def test_code_from_elsewhere_and_packages_that_were_changed_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper = tmp_path / "helper.py"
    helper.write_text("x = 1")
    expected = {"helper": hashlib.sha256(b"x = 1").hexdigest()}
    files = {"helper": str(helper), "gone": str(tmp_path / "gone.py"), "a b": str(helper)}
    files |= {"data": str(tmp_path / "data.txt"), "pipe": "/dev/stdin.py"}

    assert elsewhere(files) == expected | {"gone": "unreadable", "pipe": "unreadable"}

    helper.write_text("x = 2")
    assert elsewhere({"helper": str(helper)}) == {"helper": file_sha256(helper)} != expected

    place = str(Path(psutil.__file__).resolve())
    monkeypatch.setitem(provenance._recorded(), place, "0" * 64)
    assert elsewhere({"psutil": psutil.__file__}) == {"psutil": file_sha256(Path(place))}


def test_the_manifest_says_what_code_the_ranks_imported(bench: Bench) -> None:
    assert bench.run("--plan", "dp=2").code == 0

    (manifest,) = bench.manifests()
    found = manifest["imports"]
    assert found["modules"] > 100
    assert len(found["python_sha256"]) == 64
    # All of the package that holds the trainer is hashed; Debian's Python brings a sitecustomize.
    assert found["elsewhere"].keys() <= {"sitecustomize"}
