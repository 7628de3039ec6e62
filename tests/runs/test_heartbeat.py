from __future__ import annotations

import time
from typing import TYPE_CHECKING

from suite.runs import heartbeat as module
from suite.runs.heartbeat import Listener, heartbeat
from tests.runs.conftest import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_process_lives_as_long_as_its_heart_beats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_INTERVAL_S", 0.05)
    listener = Listener(tmp_path / "life")

    def looks(what: str) -> bool:
        listener.look()
        return bool(getattr(listener, what))

    with heartbeat(tmp_path / "life"):
        wait_until(lambda: looks("alive"))
        assert not listener.lost
    wait_until(lambda: looks("lost"))
    with heartbeat(tmp_path / "life"):
        wait_until(lambda: not looks("lost"))


def test_what_a_dead_process_left_behind_is_no_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_INTERVAL_S", 0.001)
    (tmp_path / "life").write_text("7")
    left, none = Listener(tmp_path / "life"), Listener(tmp_path / "none")
    for _ in range(50):
        left.look()
        none.look()
        time.sleep(0.002)

    assert (left.alive, none.alive) == (False, False)
    assert (left.lost, none.lost) == (True, True)


def test_looks_are_counted_not_seconds(tmp_path: Path) -> None:
    """Storage that stands still stops whoever looks as well: that is one look, however long."""
    listener = Listener(tmp_path / "life")
    for _ in range(1000):
        listener.look()

    assert not listener.lost
