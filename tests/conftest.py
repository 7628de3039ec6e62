"""What all tests share.

A busy machine fails no property test, the longest files come first, what was imported is not
searched for garbage, and torch computes in one thread beside other tests.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

from tests.tiers import is_in_part, part

gc.disable()  # until all tests are collected: importing torch and others leaves no garbage

_BESIDE_OTHERS: Final = "PYTEST_XDIST_WORKER" in os.environ

if _BESIDE_OTHERS and hasattr(os, "SCHED_BATCH"):
    # A thread that wakes up preempts no other one; else gloo's poll for locks that those hold.
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

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
    "tests/engine/test_nccl_order.py",
    "tests/engine/test_checkpoint.py",
    "tests/engine/test_odd_models.py",
    "tests/test_rerun_of_a_run.py",
    "tests/engine/test_projected_bytes.py",
    "tests/test_walk.py",
    "tests/docs/test_your_model.py",
    "tests/rules/mlperf/test_mutants.py",
    "tests/rules/mlperf/test_all_rounds.py",
    "tests/run/test_ranks_that_fail.py",
    "tests/run/test_resume.py",
    "tests/run/test_harness_that_ends.py",
    "tests/docs/test_your_framework.py",
    "tests/engine/test_sharded_optimizers.py",
    "tests/engine/test_gradient_compression.py",
    "tests/hostile/test_large.py",
    "tests/hostile/test_hostile.py",
    "tests/cli/test_prepare.py",
    "tests/engine/test_input.py",
    "tests/engine/test_start.py",
    "tests/run/test_hostile_trainers.py",
    "tests/images/test_cifar10.py",
    "tests/rules/test_laws.py",
    "tests/test_pytest_plugin.py",
    "tests/run/test_stopped.py",
    "tests/cli/test_rescore.py",
    "tests/cli/test_export.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--part``, with which many runs share what one would take too long for."""
    parser.addoption("--part", type=part, metavar="K/N", help="run part K, from 0, of N parts")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out other parts, and put the tests of the longest files first."""
    if share := config.getoption("part"):
        others = [item for item in items if not is_in_part(item.nodeid, *share)]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if is_in_part(item.nodeid, *share)]
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
