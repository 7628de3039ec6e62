from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hybridperf.system import files

if TYPE_CHECKING:
    from pathlib import Path


def test_what_cannot_be_read_is_absent(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert (files.text(gone), files.number(gone), files.size_bytes(gone)) == ("", None, None)
    assert (files.children(gone), files.link_name(gone), files.text(tmp_path)) == ([], "", "")


def test_bytes_that_are_no_text_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "odd").write_bytes(b"\xff\x00a\n")
    assert files.text(tmp_path / "odd") == "\ufffd a"


@pytest.mark.parametrize(
    ("content", "cpus"),
    [("0-3,8", [0, 1, 2, 3, 8]), ("", []), ("5", [5]), ("a-b,2,-", [2]), ("3-1", [])],
)
def test_cpu_lists_are_read_and_odd_parts_skipped(content: str, cpus: list[int]) -> None:
    assert files.cpu_list(content) == cpus


@pytest.mark.parametrize(
    ("content", "size"), [("32K", 32768), ("2M", 2 << 20), ("7", 7), ("x", None), ("-1K", None)]
)
def test_sizes_are_read(tmp_path: Path, content: str, size: int | None) -> None:
    (tmp_path / "size").write_text(f"{content}\n")
    assert files.size_bytes(tmp_path / "size") == size


def test_children_stand_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("node10", "node2"):
        (tmp_path / name).mkdir()
    assert [path.name for path in files.children(tmp_path)] == ["node2", "node10"]
