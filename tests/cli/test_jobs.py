"""With ``--jobs``, commands say what they say without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.packages import write_result

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Finished


@pytest.mark.parametrize("command", ["check", "score"])
def test_several_processes_answer_as_one(
    hybridperf: Callable[..., Finished], tmp_path: Path, command: str
) -> None:
    for org in ("acme", "other", "third"):
        write_result(tmp_path, org=org)
    (tmp_path / "other" / "systems" / "laptop.json").unlink()

    alone = hybridperf(command, str(tmp_path), "--json")

    assert hybridperf(command, str(tmp_path), "--json", "--jobs", "2") == alone
    assert hybridperf(command, str(tmp_path), "--json", "--jobs") == alone
    assert "other" in alone.out


@pytest.mark.parametrize("jobs", ["0", "-1", "many"])
def test_a_number_that_is_none_is_refused(hybridperf: Callable[..., Finished], jobs: str) -> None:
    done = hybridperf("check", ".", "--jobs", jobs)

    assert done.code == 2
    assert "--jobs" in done.err
