"""Where reference convergence points come from: MLCommons' files, and our own tasks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NoReturn

from suite.findings import Finding, visible
from suite.logs.strict_json import parse_object, read_bounded, reason
from suite.refusal import ExitCode, Refusal
from suite.scores.rcp import Reference
from suite.tasks.registry import find_task, task_names

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["RcpSet", "read_rcp_set", "runs_of_result", "task_references"]

_CAP_BYTES: Final = 2**20
_PREFIX: Final = "rcps_"
_RUNS: Final = {  # MLPerf Training rules, section 12: runs of a result that drops one at each end
    "bert": 10,
    "dlrm": 5,
    "maskrcnn": 5,
    "resnet": 5,
    "retinanet": 5,
    "rnnt": 10,
    "ssd": 5,
}

RcpSet = dict[str, tuple[Reference, ...]]  #: by benchmark


def runs_of_result(benchmark: str) -> int | None:
    """Return how many runs the rules ask of a result, where known."""
    if benchmark in task_names():
        return find_task(benchmark).runs.count
    return _RUNS.get(benchmark)


def task_references(benchmark: str) -> tuple[Reference, ...]:
    """Return the reference points of one of our own tasks, in samples."""
    if benchmark not in task_names() or (own := find_task(benchmark).reference) is None:
        return ()
    return (Reference(own.global_batch_size, tuple(map(float, own.samples_to_target))),)


def read_rcp_set(folder: Path) -> RcpSet:
    """Read every ``rcps_<benchmark>.json`` in ``folder``; of our own tasks, ``rcps_<slug>.json``.

    Raises:
        Refusal: exit status 2, where there is none, or one is not what it should be.
    """
    paths = sorted(folder.glob(f"{_PREFIX}*.json")) if folder.is_dir() else []
    if not paths:
        _refuse(folder, "a folder of MLCommons' files rcps_<benchmark>.json", "none")
    tasks = {name.replace("/", "-"): name for name in task_names()}
    names = (path.stem.removeprefix(_PREFIX) for path in paths)
    return {tasks.get(name, name): _read(path) for name, path in zip(names, paths, strict=True)}


def _read(path: Path) -> tuple[Reference, ...]:
    try:
        records = parse_object(read_bounded(path, _CAP_BYTES).decode())
        return tuple(_reference(name, record) for name, record in records.items())
    except (OSError, ValueError) as error:
        _refuse(path, "reference convergence points as MLCommons writes them", reason(error))


def _reference(name: str, record: object) -> Reference:
    if not isinstance(record, dict):
        raise ValueError(f"{name!r:.80}, which is no object")  # noqa: TRY004 - wrong text, not a wrong argument
    batch, amounts = record.get("BS"), record.get("Epochs to converge")
    if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
        raise ValueError(f"{name!r:.80} with BS = {batch!r:.80}")
    if not (isinstance(amounts, list) and len(amounts) >= 3 and all(map(_is_amount, amounts))):
        raise ValueError(f"{name!r:.80} without three or more positive 'Epochs to converge'")
    return Reference(batch, tuple(map(float, amounts)))


def _is_amount(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and value > 0


def _refuse(path: Path, expected: str, found: str) -> NoReturn:
    finding = Finding(
        "score.rcp_set", expected, found, "name another --rcp-set", visible(str(path))
    )
    raise Refusal(finding, ExitCode.USAGE)
