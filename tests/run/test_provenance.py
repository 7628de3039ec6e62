"""Hashes of code: of every file of a package, and of the packages that are installed."""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.run import provenance

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "mine"
    (folder / "kernels").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "kernels" / "fast.so").write_bytes(b"\x7fELF")
    (folder / "labels.npy").write_bytes(b"1234")
    monkeypatch.chdir(tmp_path)
    return folder


def sha256_of_trainer() -> object:
    provenance.code_facts.cache_clear()
    return provenance.code_facts("mine")["trainer_sha256"]


@pytest.mark.parametrize("name", ["__init__.py", "kernels/fast.so", "labels.npy", "new.pyc"])
def test_every_file_of_a_package_counts(trainer: Path, name: str) -> None:
    before = sha256_of_trainer()

    (trainer / name).write_bytes(b"another")

    assert sha256_of_trainer() != before


def test_a_files_name_counts(trainer: Path) -> None:
    before = sha256_of_trainer()

    (trainer / "labels.npy").rename(trainer / "answers.npy")

    assert sha256_of_trainer() != before


def test_what_python_compiles_does_not_count(trainer: Path) -> None:
    before = sha256_of_trainer()

    (trainer / "__pycache__").mkdir()
    (trainer / "__pycache__" / "train.cpython-311.pyc").write_bytes(b"x")

    assert sha256_of_trainer() == before


def test_what_else_lies_among_it_counts(trainer: Path) -> None:
    (trainer / "__pycache__").mkdir()
    before = sha256_of_trainer()

    (trainer / "__pycache__" / "other.py").write_text("")

    assert sha256_of_trainer() != before


def test_what_a_link_leads_to_counts(trainer: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (trainer / "kernels" / "more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(trainer)
    before = sha256_of_trainer()

    (tmp_path / "elsewhere" / "labels.npy").write_bytes(b"1234")

    assert sha256_of_trainer() != before


def test_the_packages_that_hold_a_trainer_count(trainer: Path) -> None:
    def sha256_of_kernels() -> object:
        provenance.code_facts.cache_clear()
        return provenance.code_facts("mine.kernels")["trainer_sha256"]

    (trainer / "kernels" / "__init__.py").write_text("")
    before = sha256_of_kernels()

    (trainer / "__init__.py").write_text("import other")

    assert sha256_of_kernels() != before


class Installed:
    """As much of an installed package as a hash is made of."""

    def __init__(self, name: str, version: str, record: str | None) -> None:
        self.metadata, self.version, self.record = {"Name": name}, version, record

    def read_text(self, _: str) -> str | None:
        return self.record


def test_a_change_of_any_installed_package_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def sha256_of(*packages: Any) -> str:
        monkeypatch.setattr(importlib.metadata, "distributions", lambda: packages)
        provenance.packages_sha256.cache_clear()
        return provenance.packages_sha256()

    torch, numpy = Installed("torch", "2.15", "torch/x.py,sha256=1"), Installed("numpy", "2", None)
    same = sha256_of(torch, numpy)

    assert sha256_of(numpy, torch) == same
    assert sha256_of(torch) != same
    assert sha256_of(torch, Installed("numpy", "2.1", None)) != same
    assert sha256_of(Installed("torch", "2.15", "torch/x.py,sha256=2"), numpy) != same
    provenance.packages_sha256.cache_clear()
