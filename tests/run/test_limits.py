"""Limits of the shell, and folders that go: one sentence each, and nothing left behind."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.run.conftest import find, finished, wait_until

if TYPE_CHECKING:
    from tests.run.conftest import Bench


@pytest.mark.parametrize(
    ("limit", "value", "codes"),
    [
        (psutil.RLIMIT_FSIZE, 100_000, {4}),  # the weights are larger
        (psutil.RLIMIT_NOFILE, 24, {0, 4}),
        (psutil.RLIMIT_AS, 400 * 2**20, {0, 4}),
    ],
)
def test_a_limit_of_the_shell_is_said_or_does_not_matter(
    bench: Bench, limit: int, value: int, codes: set[int]
) -> None:
    bench.server = None
    process = bench.start()
    psutil.Process(process.pid).rlimit(limit, (value, value))

    done = finished(process)

    assert done.code in codes, done
    assert bench.processes_left() == []
    bench.assert_consistent()
    assert bench.run().code == 0
    bench.assert_settled()


@pytest.mark.parametrize("what", ["the attempt", "its work", "the result"])
def test_a_folder_that_goes_while_a_run_trains_ends_it(bench: Bench, what: str) -> None:
    process = bench.start(FAULT="slow")
    bench.await_batches(5)
    (attempt,) = find(bench.out, ".attempt_0")
    gone = {"the attempt": attempt, "its work": attempt / "work", "the result": attempt.parent}
    shutil.rmtree(gone[what], ignore_errors=True)

    done = finished(process)

    assert done.code in {3, 4}, done
    wait_until(lambda: not bench.processes_left())
    assert bench.run().code == 0
    bench.assert_settled()
