"""MLPerf's rounds, unpacked once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.score.rounds import unpack

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("rounds"))
