"""Load reference convergence points."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NoReturn

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding, visible
from hybridperf.score.olympic import fewest_runs
from hybridperf.score.rcp_points import Reference
from hybridperf.tasks.mlperf import mlperf_benchmark
from hybridperf.tasks.registry import find_task, task_names
from hybridperf.untrusted import COUNT_CAP, number, read_object, reason, whole

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["RcpSet", "RcpSets", "points_of", "read_rcp_set", "read_rcp_sets", "task_references"]

_PREFIX: Final = "rcps_"
_AMOUNTS: Final = ("Epochs to converge", "samples to converge")  #: MLCommons' keys, by benchmark

#: folder of a round's points: ``v2.1``, or ``training_2.1.0`` as in MLCommons' package
_OF_ROUND: Final = re.compile(r"(?:v|training_)([0-9]{1,3}\.[0-9]{1,3})(?:\.0)?")

RcpSet = dict[str, tuple[Reference, ...]]  #: by benchmark
RcpSets = dict[str, RcpSet]  #: by round, such as ``2.1``; "": for all other results


def task_references(benchmark: str) -> tuple[Reference, ...]:
    """Return the reference convergence points of a task of this suite, in samples."""
    if benchmark not in task_names() or (own := find_task(benchmark).reference) is None:
        return ()
    return (Reference(own.global_batch_size, tuple(map(float, own.samples_to_target))),)


def points_of(sets: RcpSets, edition: str) -> RcpSet:
    """Return the points for results of round ``edition``."""
    return sets.get(edition, sets.get("", {}))


def read_rcp_sets(folder: Path) -> RcpSets:
    """Read the points in ``folder``, and those of rounds in its folders such as ``v2.1``.

    Raises:
        UserError: exit status 2 if there are none, or if a file is malformed.
    """
    inside = sorted(folder.iterdir()) if folder.is_dir() else []
    named = {each: _OF_ROUND.fullmatch(each.name) for each in inside if each.is_dir()}
    sets = {match[1]: read_rcp_set(each) for each, match in named.items() if match}
    if not sets or any(folder.glob(f"{_PREFIX}*.json")):
        sets[""] = read_rcp_set(folder)
    return sets


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
    return {name: _read_points(path, name) for name, path in zip(benchmarks, paths, strict=True)}


def _read_points(path: Path, benchmark: str) -> tuple[Reference, ...]:
    least = fewest_runs(mlperf_benchmark(benchmark).drops)
    try:
        records = read_object(path)
        points = tuple(_point_of(name, record, least) for name, record in records.items())
        _refuse_twins(points)
    except (OSError, ValueError) as error:
        _refuse(path, "reference convergence points as MLCommons writes them", reason(error))
    return points


def _point_of(name: str, record: object, least: int) -> Reference:
    if not isinstance(record, dict):
        raise ValueError(f"{name!r:.80}, which is no object")  # noqa: TRY004 - wrong text, not a wrong argument
    batch = whole(record.get("BS"), 1, COUNT_CAP)
    if batch is None:
        raise ValueError(f"{name!r:.80} with BS = {record.get('BS')!r:.80}")
    stated = [key for key in _AMOUNTS if key in record]
    amounts = record[stated[0]] if len(stated) == 1 else None
    if not (
        isinstance(amounts, list)
        and len(amounts) >= least
        and all(number(each, 0, COUNT_CAP) for each in amounts)
    ):
        either = " or ".join(map(repr, _AMOUNTS))
        raise ValueError(f"{name!r:.80} without {least} or more positive {either}")
    return Reference(batch, tuple(map(float, amounts)))


def _refuse_twins(points: tuple[Reference, ...]) -> None:
    sizes = [point.batch_size for point in points]
    if twins := [size for size in dict.fromkeys(sizes) if sizes.count(size) > 1]:
        raise ValueError(f"several points of batch size {twins[0]}")


def _refuse(path: Path, expected: str, found: str) -> NoReturn:
    finding = Finding(
        "score.rcp_set", expected, found, "name another --rcp-set", visible(str(path))
    )
    raise UserError(finding, ExitCode.USAGE)
