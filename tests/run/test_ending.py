"""Why ranks ended, in one clause, from what they printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hybridperf.run import ending
from hybridperf.run.ending import explain_crash, first_failure, read_output

if TYPE_CHECKING:
    from pathlib import Path

RAISED = """Traceback (most recent call last):
  File "/src/train.py", line 41, in <module>
    main()
  File "/src/train.py", line 30, in main
    raise ValueError(f"{loss} is no loss")
ValueError: nan is no loss
"""
RANKED = """[rank1]: Traceback (most recent call last):
[rank1]:   File "/src/train.py", line 41, in <module>
[rank1]:     main()
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
[rank0]: Traceback (most recent call last):
[rank0]:   File "/src/train.py", line 41, in <module>
[rank0]: RuntimeError: [/pytorch/third_party/gloo] Connection closed by peer [127.0.0.1]:3142
"""
INTERLEAVED = """Traceback (most recent call last):
Traceback (most recent call last):
  File "/src/train.py", line 41, in <module>
  File "/src/train.py", line 41, in <module>
    main()
odd.Boom: first
odd.Boom: second
"""
OPENING = "Traceback (most recent call last):\n"


def killed(rank: int, number: int) -> str:
    return first_failure(rank, -number)


def failed(output: str, rank: int) -> str:
    return output + first_failure(rank, 1)


@pytest.mark.parametrize(
    ("output", "status", "clause"),
    [
        (killed(1, 9), 1, "rank 1 was killed by SIGKILL"),
        (killed(0, 11), 1, "rank 0 was killed by SIGSEGV"),
        (RANKED + killed(3, 9), 1, "rank 3 was killed by SIGKILL"),
        (killed(0, 40), 1, "rank 0 was killed by signal 40"),
        (failed(RAISED, 0), 1, "rank 0 failed: ValueError: nan is no loss"),
        (
            failed(RANKED, 1),
            1,
            "rank 1 failed: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        ),
        (failed(INTERLEAVED, 0), 1, "rank 0 failed: odd.Boom: first"),
        (failed("Error: harmless\n" + RAISED, 0), 1, "rank 0 failed: ValueError: nan is no loss"),
        (
            failed(RAISED.replace("nan", "\x1b[31mred"), 0),
            1,
            "rank 0 failed: ValueError: \\x1b[31mred is no loss",
        ),
        (failed(RAISED, 12), 1, "rank 12 failed: ValueError: nan is no loss"),
        ("", 3, "the trainer failed: exit status 3"),
        ("", 0, "the trainer ended before its run did"),
        ("", -15, "the trainer was killed by SIGTERM"),
        (OPENING, 1, "the trainer failed: exit status 1"),
        ("x" * 10**6, 1, "the trainer failed: exit status 1"),
        (OPENING + "  x\n" * 10**5, 1, "the trainer failed: exit status 1"),
        (OPENING * 10**3 + "Boom", 1, "the trainer failed: Boom"),
        (OPENING * 5000, 1, "the trainer failed: exit status 1"),
    ],
    ids=range(18),
)
def test_a_crash_is_explained_in_one_clause(output: str, status: int, clause: str) -> None:
    assert explain_crash(output, status) == clause


def test_of_output_without_end_the_last_part_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "OUTPUT_CAP_BYTES", 5)
    path = tmp_path / "output.txt"
    path.write_bytes(b"\xff23456789")
    assert read_output(path) == "56789"
    path.write_bytes(b"\xff23")
    assert read_output(path) == "\ufffd23"
