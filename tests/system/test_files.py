from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hybridperf.system import files

if TYPE_CHECKING:
    from pathlib import Path


def test_unreadable_files_count_as_absent(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert (files.text(gone), files.integer(gone), files.size_bytes(gone)) == ("", None, None)
    assert (files.children(gone), files.link_name(gone), files.text(tmp_path)) == ([], "", "")


def test_invalid_utf_8_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "odd").write_bytes(b"\xff\x00a\n")
    assert files.text(tmp_path / "odd") == "\ufffd a"


@pytest.mark.parametrize(
    ("content", "cpus"),
    [("0-3,8", [0, 1, 2, 3, 8]), ("", []), ("5", [5]), ("a-b,2,-", [2]), ("3-1", [])],
)
def test_cpu_lists_are_parsed_and_malformed_parts_skipped(content: str, cpus: list[int]) -> None:
    assert files.cpu_list(content) == cpus


@pytest.mark.parametrize(
    ("content", "size"), [("32K", 32768), ("2M", 2 << 20), ("7", 7), ("x", None), ("-1K", None)]
)
def test_sizes_are_converted_to_bytes(tmp_path: Path, content: str, size: int | None) -> None:
    (tmp_path / "size").write_text(f"{content}\n")
    assert files.size_bytes(tmp_path / "size") == size


def test_children_are_in_numeric_order(tmp_path: Path) -> None:
    for name in ("node10", "node2"):
        (tmp_path / name).mkdir()
    assert [path.name for path in files.children(tmp_path)] == ["node2", "node10"]
