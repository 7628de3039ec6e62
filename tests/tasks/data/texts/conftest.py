from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hybridperf.tasks.data.samples import DATA_VARIABLE
from tests.texts import lines, text_data, write_lines, write_vocabulary

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.tasks.task import Data


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of text in three files to train on and one to evaluate."""
    place = tmp_path / "text"
    place.mkdir()
    for number in range(3):
        write_lines(place / f"train-{number}.txt", lines(50, 50 * number))
    write_lines(place / "valid.txt", lines(40, 1000))
    monkeypatch.setenv(DATA_VARIABLE, str(place))
    return place


@pytest.fixture
def data(folder: Path) -> Data:
    """Return the data of a task that reads it."""
    return text_data(write_vocabulary(folder))
