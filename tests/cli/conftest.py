"""Commands in this process, and a result to give them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hybridperf.cli import main
from tests.run.conftest import Finished, finished_run, first_run, timed_run

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Finished", "finished_run", "first_run", "hybridperf", "timed_run"]


@pytest.fixture
def hybridperf(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Finished]:
    """``hybridperf(*arguments)``: the exit status and what was printed, in lines of any length."""
    monkeypatch.setenv("COLUMNS", "400")

    def carry_out(*arguments: str) -> Finished:
        try:
            code = main(arguments)
        except SystemExit as end:  # argparse ends the process itself
            code = int(end.code or 0)
        said = capsys.readouterr()
        return Finished(code, said.out, said.err)

    return carry_out
