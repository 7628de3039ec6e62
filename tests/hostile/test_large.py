"""No input of any size takes more than a bounded amount of memory, or time out of proportion."""

from __future__ import annotations

import gc
import itertools
import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final

import pytest

from hybridperf.rules.check import check_path
from tests.hostile.large import LARGE, write_large
from tests.packages import log_path, write_result
from tests.rules.mlperf.strict_logs import RULESET, bert, write
from tests.tiers import in_tiers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MEMORY_MIB: Final = 64  # over base
_GROWTH: Final = 2.3  # of the time, for twice the input
_NOISE_S: Final = 0.005
_ENOUGH_S: Final = 0.02  # to be measured
_MOST_BYTES: Final = 2**25
_TRIES: Final = 40  # of which the best counts
# Each log is judged in a process of its own, whose memory is counted from where it begins: by
# VmHWM, as ru_maxrss begins with what the parent had.
_MEASURE: Final = f"""
import json, os, re, sys
from pathlib import Path
from hybridperf.rules.check import check_path
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
def judge(path, mode):
    path = Path(path)
    return check_path(path) if mode == "ours" else check_path(path, "{RULESET}", mode)
for mode in ("ours", "strict"):
    judge(sys.argv[1], mode)  # imports and caches are no part of it
for line in sys.stdin:
    if os.fork():
        os.wait()
        continue
    base = peak()
    count = len(judge(*json.loads(line)).findings)
    print(json.dumps([(peak() - base) / 1024, count]), flush=True)
    os._exit(0)
"""


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return a valid log for each mode, all as long as the longest."""
    root = tmp_path_factory.mktemp("valid")
    ours = log_path(write_result(root, times_s=[10.0]), 0).read_bytes()
    published = write(root / "bert.txt", bert()).read_bytes()
    length = max(len(ours), len(published)) + 1
    filled = [text + (length - len(text) - 1) * b" " + b"\n" for text in (ours, published)]
    return dict(zip(("ours", "as-published", "strict"), [*filled, filled[1]], strict=True))


@pytest.fixture(scope="module")
def judge(
    tmp_path_factory: pytest.TempPathFactory, heads: dict[str, bytes]
) -> Iterator[subprocess.Popen[str]]:
    small = tmp_path_factory.mktemp("small") / "log.txt"
    small.write_bytes(heads["strict"])
    with subprocess.Popen(
        [sys.executable, "-c", _MEASURE, str(small)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture(scope="module", autouse=True)
def _collected() -> Iterator[None]:
    """Keep the collector from going through what other tests left while time is taken."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "log.txt"
    yield path
    path.unlink()


@pytest.mark.parametrize("name", in_tiers(LARGE, always=[*LARGE][::4]))
def test_memory_for_64_mib_is_bounded(
    path: Path, heads: dict[str, bytes], judge: subprocess.Popen[str], name: str
) -> None:
    write_large(path, heads["ours"], LARGE[name])

    for mode, head in heads.items():
        with path.open("r+b") as file:
            file.write(head)
        memory_mib, findings = _judged(judge, path, mode)

        assert memory_mib < _MEMORY_MIB, mode
        assert findings < 3_000, mode


def _judged(judge: subprocess.Popen[str], path: Path, mode: str) -> tuple[float, int]:
    assert judge.stdin is not None
    assert judge.stdout is not None
    judge.stdin.write(f"{json.dumps([str(path), mode])}\n")
    judge.stdin.flush()
    memory_mib, findings = json.loads(judge.stdout.readline())
    return memory_mib, findings


# In every run, each text is read in one of the modes.
@pytest.mark.parametrize(
    ("name", "mode"),
    in_tiers(
        itertools.product(LARGE, ("ours", "strict")),
        always=[*zip(LARGE, itertools.cycle(("ours", "strict")))],
    ),
)
def test_twice_the_input_takes_twice_the_time(
    tmp_path: Path, path: Path, heads: dict[str, bytes], name: str, mode: str
) -> None:
    head, text, size = heads[mode], LARGE[name], 2**18  # of what is doubled: the head is cheap
    write_large(path, head, text, len(head) + size)
    while (once_s := _timed(path, mode)) < _ENOUGH_S and size < _MOST_BYTES:
        size *= 2
        write_large(path, head, text, len(head) + size)
    other = tmp_path / "twice.txt"
    write_large(other, head, text, len(head) + 2 * size)
    twice_s = _timed(other, mode)

    for _ in range(_TRIES):
        if twice_s <= _GROWTH * once_s + _NOISE_S:
            break
        once_s, twice_s = min(once_s, _timed(path, mode)), min(twice_s, _timed(other, mode))
    other.unlink()
    assert twice_s <= _GROWTH * once_s + _NOISE_S


def _timed(path: Path, mode: str) -> float:
    start = time.process_time()
    check_path(path) if mode == "ours" else check_path(path, RULESET, "strict")
    return time.process_time() - start
