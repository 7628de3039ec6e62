"""The processor time that other processes use meanwhile."""

from __future__ import annotations

import os
import resource
import time
from types import SimpleNamespace
from typing import NamedTuple

import psutil
import pytest

from hybridperf.system.host import OtherProcesses


class Times(NamedTuple):
    """Seconds of a processor, as psutil names them."""

    user: float
    system: float
    idle: float
    iowait: float = 0.0
    steal: float = 0.0
    guest: float = 0.0
    guest_nice: float = 0.0


def test_others_are_what_this_process_and_its_children_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processors = [Times(10, 5, 100), Times(0, 0, 100), Times(0, 0, 100)]
    used = {resource.RUSAGE_SELF: 1.0, resource.RUSAGE_CHILDREN: 2.0}
    clock = [50.0]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(psutil, "cpu_times", lambda **_: processors)
    monkeypatch.setattr(
        resource, "getrusage", lambda who: SimpleNamespace(ru_utime=used[who], ru_stime=0.0)
    )
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    others = OtherProcesses()

    # In ten seconds: 6 s of one usable processor and 3 s of the other, of them 1 s of a guest,
    # counted twice, and 2 s that the host gave to others; 4 s are our own.
    processors[:] = [Times(14, 5, 104, steal=2), Times(3, 0, 107, guest=1), Times(10, 0, 100)]
    used[resource.RUSAGE_SELF], used[resource.RUSAGE_CHILDREN] = 2.0, 5.0
    clock[0] = 60.0

    assert others.share() == pytest.approx((6 + 3 - 4) / (10 * 2))
