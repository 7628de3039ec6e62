from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.system import software as module
from hybridperf.system.software import probe_software, torch_build, torch_release

if TYPE_CHECKING:
    from pathlib import Path


def test_versions_are_those_of_the_installed_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    found = probe_software()
    assert found["python"] == platform.python_version()
    assert found["libraries"]["torch"] == importlib.metadata.version("torch")
    assert found["torch"]["version"].startswith(found["libraries"]["torch"])
    assert found["environment"]["OMP_NUM_THREADS"] == "3"
    assert "pytest" not in found["libraries"]


def test_a_package_is_named_by_its_first_fields_and_the_first_of_a_name_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends, described = "\r\n", "Name: numpy\r\nVersion: 9\r\n"
    for folder, version in (("first", "1.5+local"), ("second", "2.0")):
        package = tmp_path / folder / "flash_attn.dist-info"
        package.mkdir(parents=True)
        fields = ("Metadata-Version: 2.1", "Name: Flash_Attn", f"Version: {version}", "", described)
        (package / "METADATA").write_bytes(ends.join(fields).encode())
    (tmp_path / "second" / "apex.dist-info").mkdir()  # without any field
    for folder in ("second", "first"):
        monkeypatch.syspath_prepend(tmp_path / folder)
    module._libraries.cache_clear()

    found = probe_software()["libraries"]

    module._libraries.cache_clear()
    assert found["flash-attn"] == "1.5+local"
    assert found["numpy"] == importlib.metadata.version("numpy")
    assert "apex" not in found


def test_the_version_file_is_read_without_executing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "version.py").write_text(
        "from x import y\n__version__ = '2.12.0+cpu'\ndebug = False\ncuda: Optional[str] = None\n"
        "hip: Optional[str] = open('/etc/passwd').read()\ngit_version = 'abc'\n"
    )
    monkeypatch.setattr(module, "torch_folder", lambda: tmp_path)
    expected = {
        "version": "2.12.0+cpu",
        "toolkit": "",
        "hip": "",
        "xpu": "",
        "git_version": "abc",
        "debug": False,
    }
    assert torch_release() == expected


@pytest.mark.parametrize("content", [None, "not python ((", "__version__ = 3\n"])
def test_a_missing_or_malformed_version_file_is_empty(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if content is not None:
        (tmp_path / "version.py").write_text(content)
    monkeypatch.setattr(module, "torch_folder", lambda: tmp_path if content else None)
    assert set(torch_release().values()) == {"", None}


def test_the_build_is_queried_once_in_a_subprocess() -> None:
    torch_build.cache_clear()
    found = torch_build()
    assert found["gloo_available"] is True
    assert isinstance(found["cpu_capability"], str)
    assert torch_build() is found


@pytest.mark.parametrize("output", ["", "no json", "[1"])
def test_the_build_of_a_broken_torch_is_empty(output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any, **__: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 0, stdout=output)

    monkeypatch.setattr(subprocess, "run", run)
    torch_build.cache_clear()
    assert torch_build() == {}
    torch_build.cache_clear()
