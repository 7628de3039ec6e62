"""What all tests share.

A busy machine fails no property test, the longest files come first, what was imported is not
searched for garbage, and torch computes in one thread beside other tests.
"""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import struct
import sys
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

gc.disable()  # until all tests are collected: importing torch and others leaves no garbage

_BESIDE_OTHERS: Final = "PYTEST_XDIST_WORKER" in os.environ

_SLICE_NS: Final = 100_000_000  #: the longest that Linux grants; usual are some milliseconds
_SCHED_SETATTR: Final = {"x86_64": 314, "aarch64": 274}  #: number of the call, which libc lacks


def _compute_in_long_slices() -> None:
    """Let this process, and those that it starts, compute for 100 ms before others do.

    Ranks of all workers share few processors. Under `SCHED_BATCH` a thread that wakes up preempts
    no other one; else gloo's threads poll for locks that those hold. Linux since 6.12 grants slices
    of other lengths: files of the engine's tests took 8 to 13 % less processor time.
    """
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    if call := _SCHED_SETATTR.get(platform.machine()):
        # size, policy, flags, nice, priority, runtime, deadline, period: sched_setattr(2)
        fields = struct.pack("=IIQiIQQQ", 48, os.SCHED_BATCH, 0, 0, 0, _SLICE_NS, 0, 0)
        ctypes.CDLL(None).syscall(call, 0, fields, 0)  # where it is refused, slices stay usual


if _BESIDE_OTHERS and hasattr(os, "SCHED_BATCH"):
    _compute_in_long_slices()

# How long an example takes says how busy the machine is, not whether the law holds.
settings.register_profile(
    "busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("busy machine")

# So that all workers end at about the same time; the others follow in the order of their names.
_LONGEST: Final = (
    "tests/engine/test_transparency.py",
    "tests/run/test_nodes.py",
    "tests/engine/test_law.py",
    "tests/engine/test_odd_models.py",
    "tests/engine/test_nccl_order.py",
    "tests/engine/test_checkpoint.py",
    "tests/rules/mlperf/test_mutants.py",
    "tests/hostile/test_large.py",
    "tests/run/test_ranks_that_fail.py",
    "tests/run/test_resume.py",
    "tests/test_walk.py",
    "tests/test_rerun_of_a_run.py",
    "tests/run/test_harness_that_ends.py",
    "tests/docs/test_your_model.py",
    "tests/hostile/test_hostile.py",
    "tests/cli/test_prepare.py",
    "tests/engine/test_input.py",
    "tests/cli/test_rescore.py",
    "tests/run/test_hostile_trainers.py",
    "tests/test_pytest_plugin.py",
    "tests/docs/test_your_framework.py",
    "tests/rules/mlperf/test_all_rounds.py",
    "tests/run/test_stopped.py",
    "tests/images/test_cifar10.py",
    "tests/rules/test_laws.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of the longest files first."""
    places = {name: place for place, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that needs more accelerators than there are."""
    if (mark := item.get_closest_marker("gpu")) is None:
        return
    import torch

    (wanted,), found = mark.args or (1,), torch.accelerator.device_count()
    if found < wanted:
        pytest.skip(f"needs accelerators: {wanted}, this machine has {found}")


def pytest_collection_finish() -> None:
    """Leave what was imported out of every later search for garbage.

    Beside other tests, torch computes in one thread: threads wait for one another by polling.
    """
    gc.freeze()
    gc.enable()
    torch = sys.modules.get("torch")
    if torch is not None and _BESIDE_OTHERS:
        torch.set_num_threads(1)


def pytest_unconfigure() -> None:
    """Let it be collected: nanobind reports what the interpreter leaves."""
    gc.unfreeze()
