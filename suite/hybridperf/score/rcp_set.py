"""Load reference convergence points from MLCommons' files and this suite's tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding, visible
from hybridperf.score.olympic import fewest_runs
from hybridperf.score.rcp import Reference
from hybridperf.tasks.mlperf import mlperf_benchmark
from hybridperf.tasks.registry import find_task, task_names
from hybridperf.untrusted import COUNT_CAP, number, read_object, reason, whole

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["RcpSet", "read_rcp_set", "runs_of_result", "task_references"]

_PREFIX: Final = "rcps_"

RcpSet = dict[str, tuple[Reference, ...]]  #: by benchmark


def runs_of_result(benchmark: str) -> int | None:
    """Return the number of runs required for a result; None if unknown."""
    if benchmark in task_names():
        return find_task(benchmark).runs.count
    return mlperf_benchmark(benchmark).runs


def task_references(benchmark: str) -> tuple[Reference, ...]:
    """Return the reference convergence points of a task of this suite, in samples."""
    if benchmark not in task_names() or (own := find_task(benchmark).reference) is None:
        return ()
    return (Reference(own.global_batch_size, tuple(map(float, own.samples_to_target))),)


def read_rcp_set(folder: Path) -> RcpSet:
    """Read every ``rcps_<benchmark>.json`` in ``folder`` (this suite: ``rcps_<slug>.json``).

    Raises:
        UserError: exit status 2 if there is no such file, or if one is malformed.
    """
    paths = sorted(folder.glob(f"{_PREFIX}*.json")) if folder.is_dir() else []
    if not paths:
        _refuse(folder, "a folder of MLCommons' files rcps_<benchmark>.json", "none")
    tasks = {name.replace("/", "-"): name for name in task_names()}
    names = (path.stem.removeprefix(_PREFIX) for path in paths)
    benchmarks = (tasks.get(name, name) for name in names)
    return {name: _read(path, name) for name, path in zip(benchmarks, paths, strict=True)}


def _read(path: Path, benchmark: str) -> tuple[Reference, ...]:
    least = fewest_runs(mlperf_benchmark(benchmark).drops)
    try:
        records = read_object(path)
        return tuple(_reference(name, record, least) for name, record in records.items())
    except (OSError, ValueError) as error:
        _refuse(path, "reference convergence points as MLCommons writes them", reason(error))


def _reference(name: str, record: object, least: int) -> Reference:
    if not isinstance(record, dict):
        raise ValueError(f"{name!r:.80}, which is no object")  # noqa: TRY004 - wrong text, not a wrong argument
    batch, amounts = whole(record.get("BS"), 1, COUNT_CAP), record.get("Epochs to converge")
    if batch is None:
        raise ValueError(f"{name!r:.80} with BS = {record.get('BS')!r:.80}")
    if not (
        isinstance(amounts, list)
        and len(amounts) >= least
        and all(number(each, 0) for each in amounts)
    ):
        raise ValueError(f"{name!r:.80} without {least} or more positive 'Epochs to converge'")
    return Reference(batch, tuple(map(float, amounts)))


def _refuse(path: Path, expected: str, found: str) -> NoReturn:
    finding = Finding(
        "score.rcp_set", expected, found, "name another --rcp-set", visible(str(path))
    )
    raise UserError(finding, ExitCode.USAGE)
