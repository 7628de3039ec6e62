from __future__ import annotations

import importlib.metadata
import platform
from typing import TYPE_CHECKING

import pytest

from hybridperf.errors import ExitCode, UserError
from hybridperf.system import software as module
from hybridperf.system.describe import describe_with_torch
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


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("print('no json')", "found something else"),
        ("", "found something else"),
        ("import os; os.kill(os.getpid(), 9)", "found a process killed by signal 9"),
        ("raise ImportError('libc10.so')", "found ImportError: libc10.so"),
        ("import time; time.sleep(600)", "found none within 1 s"),
    ],
)
def test_a_torch_that_does_not_answer_is_refused_and_asked_again(
    answer: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, "_QUERY_SCRIPT", answer)
        patch.setattr(module, "_QUERY_LIMIT_S", 1 if "sleep" in answer else 600)
        torch_build.cache_clear()
        with pytest.raises(UserError, match=found) as refused:
            describe_with_torch()
    assert refused.value.exit_code == ExitCode.ENVIRONMENT
    assert torch_build()


def test_without_torch_there_is_no_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "torch_folder", lambda: None)
    torch_build.cache_clear()
    assert torch_build() == {}
    torch_build.cache_clear()
