from __future__ import annotations

import os

import pytest

from hybridperf.parallel_map import parallel_map


def _square(number: int) -> tuple[int, int]:
    return number * number, os.getpid()


@pytest.mark.parametrize("jobs", [1, 2, 50])
@pytest.mark.parametrize("items", [0, 1, 2, 23])
def test_answers_come_in_order_from_no_more_processes_than_jobs(items: int, jobs: int) -> None:
    answers = list(parallel_map(_square, range(items), jobs))

    assert [answer for answer, _ in answers] == [number**2 for number in range(items)]
    assert len({process for _, process in answers}) <= min(jobs, max(items, 1))


def test_one_job_starts_no_process() -> None:
    assert {process for _, process in parallel_map(_square, range(5), 1)} == {os.getpid()}


def test_what_a_process_raises_is_raised_here() -> None:
    with pytest.raises(ZeroDivisionError):
        list(parallel_map((1).__truediv__, [1, 0], 2))
