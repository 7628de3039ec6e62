"""Results, runs and evaluations as data frames of pandas, and the files of ``hybridperf score``.

The columns of results are `hybridperf.score.metrics.METRICS`, those of runs `RUN_COLUMNS` and those
of evaluations `CURVE_COLUMNS`. pandas is imported when a frame is made.
"""

from __future__ import annotations

import io
import math
import warnings
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hybridperf.errors import missing_package
from hybridperf.findings import visible
from hybridperf.report.judgement import found_packages, judged_scores, no_results
from hybridperf.report.tables import flat_value, score_rows, scores_csv, scores_json
from hybridperf.run.files import write_atomically
from hybridperf.score.history import with_context
from hybridperf.score.metrics import METRICS
from hybridperf.score.ranking import with_places

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pandas import DataFrame

    from hybridperf.findings import Finding
    from hybridperf.score.metrics import Kind, Metric
    from hybridperf.score.official import Official
    from hybridperf.score.run_score import CurvePoint, RunScore

__all__ = [
    "CURVE_COLUMNS",
    "RUN_COLUMNS",
    "Column",
    "columns_markdown",
    "read_curves",
    "read_results",
    "read_runs",
    "write_scores",
]

#: nullable types of pandas, so that a column's type does not depend on missing values
_DTYPES: Final[Mapping[Kind, str]] = {
    "text": "string",
    "whole": "Int64",
    "number": "Float64",
    "truth": "boolean",
    "list": "string",
}
_MOST_WHOLE: Final = 2**63 - 1  #: largest value of Int64


@dataclass(frozen=True, slots=True)
class _Row:
    """One run of a result, or one evaluation of that run."""

    result: Official
    run: RunScore
    file: str
    evaluation: int = 0
    point: CurvePoint | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """One column of `read_runs` or `read_curves`."""

    name: str  #: column name, unit included
    doc: str
    source: Callable[[Any], object]  #: value of a row; None if unknown
    kind: Kind = "number"
    unit: str = ""


def _of_result(metric: Metric) -> Column:
    """Return the column of runs that repeats ``metric`` of their result."""
    return Column(
        metric.name, metric.doc, lambda row: metric.source(row.result), metric.kind, metric.unit
    )


def _of_run(name: str, doc: str, kind: Kind = "number", unit: str = "") -> Column:
    """Return the column of an attribute of `RunScore`."""
    return Column(name, doc, lambda row: getattr(row.run, name), kind, unit)


def _of_point(name: str, doc: str, kind: Kind = "number", unit: str = "") -> Column:
    """Return the column of an attribute of `CurvePoint`."""
    return Column(name, doc, lambda row: getattr(row.point, name), kind, unit)


def _rate(row: _Row) -> float | None:
    rate = row.run.throughput_samples_per_s
    return rate if row.result.own else rate or None  # 0 means unknown in logs of MLPerf


#: columns that name a run: those of its result, and its number
_KEYS: Final = (
    *(
        _of_result(METRICS[name])
        for name in (
            *("round", "submitter", "system", "benchmark", "version", "division", "plan"),
            "accelerators",
        )
    ),
    Column("run", "number of the run", lambda row: row.run.number, "whole"),
)
RUN_COLUMNS: Final = (
    *_KEYS,
    Column("file", "file name of the log", lambda row: row.file, "text"),
    _of_run(
        "completion",
        "reached or missed the target, or ended by something else, such as an interruption",
        "text",
    ),
    _of_run("outcome", "outcome that the manifest states", "text"),
    Column(
        "invalid",
        "error of the log by the ruleset of its round; missing if none is known",
        lambda row: row.run.invalid,
        "text",
    ),
    _of_run("counts", "whether the run counts in the olympic mean of the result", "truth"),
    Column(
        "seed",
        "seed of the run, as text, since it may have 64 bits",
        lambda row: None if row.run.seed is None else str(row.run.seed),
        "text",
    ),
    _of_run("time_to_train_s", "time to train; missing unless the target was reached", unit="s"),
    _of_run("elapsed_s", "from run_start to run_stop, or else to the last line", unit="s"),
    Column(
        "samples_to_target",
        "samples to the target, or to the end of a run that did not reach it",
        lambda row: row.run.samples_to_target or None,
        "whole",
        "samples",
    ),
    Column("throughput_samples_per_s", "end to end", _rate, unit="samples/s"),
    _of_run("steady_samples_per_s", "while training", unit="samples/s"),
    _of_run(
        "real_tokens_per_s",
        "throughput while training in tokens without padding, as the trainer counts them",
        unit="tokens/s",
    ),
    _of_run("bubble", "share of device time waiting for other stages"),
    _of_run("exposed_communication", "share of device time waiting for an all-reduce"),
    _of_run(
        "loader_samples_per_s",
        "maximum throughput of the data loaders of all ranks",
        unit="samples/s",
    ),
    _of_run(
        "compute_samples_per_s",
        "maximum throughput of training with free input",
        unit="samples/s",
    ),
    _of_run(
        "joules",
        "energy to the target; missing if a counter is, or the target was not reached",
        unit="J",
    ),
    _of_run("samples_per_joule", "end to end; missing if a counter is", unit="samples/J"),
    Column(
        "busy",
        "what made the machine busy during the run or right before it; missing if nothing did",
        lambda row: row.run.busy,
        "text",
    ),
    Column(
        "of_projected",
        "share of the projected rate that is reached while training",
        lambda row: row.run.beside_projection and row.run.beside_projection.share,
    ),
)
CURVE_COLUMNS: Final = (
    *_KEYS,
    Column("evaluation", "number of the evaluation, from 1", lambda row: row.evaluation, "whole"),
    _of_point("time_s", "from run_start to the evaluation's result", unit="s"),
    _of_point("epoch", "last epoch before the evaluation, if the schedule has epochs", "whole"),
    _of_point("samples", "samples trained on before the evaluation", "whole", "samples"),
    _of_point("quality", "value of the task's metric"),
)


def read_results(path: str | Path) -> DataFrame:
    """Return one row per result at or below ``path``, with the columns of ``hybridperf score``.

    ``path`` is a result, submissions, a round of MLPerf or a folder of rounds. Columns have
    nullable types; units are in their names and, like their documentation, in ``attrs``.

    Raises:
        UserError: if there are no results, or pandas is missing.
    """
    _require_pandas()
    rows = score_rows(_officials(path))
    return _score_frame([{name: _known(value) for name, value in row.items()} for row in rows])


def read_runs(path: str | Path) -> DataFrame:
    """Return one row per attempt of the results at or below ``path``: `RUN_COLUMNS`.

    Raises:
        UserError: as `read_results`.
    """
    _require_pandas()
    return _frame_of_rows(RUN_COLUMNS, _rows(_officials(path)))


def read_curves(path: str | Path) -> DataFrame:
    """Return one row per evaluation of the runs at or below ``path``: `CURVE_COLUMNS`.

    Raises:
        UserError: as `read_results`.
    """
    _require_pandas()
    rows = (
        _Row(row.result, row.run, row.file, number, point)
        for row in _rows(_officials(path, curves=True))
        for number, point in enumerate(row.run.curve, start=1)
    )
    return _frame_of_rows(CURVE_COLUMNS, rows)


def columns_markdown(columns: Iterable[Column]) -> str:
    """Return a Markdown table that documents ``columns``."""
    lines = [f"| `{each.name}` | {each.doc} | {each.unit} |" for each in columns]
    return "\n".join(["| column | | unit |", "|---|---|---|", *lines])


def write_scores(rows: Sequence[dict[str, object]], folder: Path) -> list[Path]:
    """Write ``scores.csv``, ``scores.json`` and ``scores.parquet`` to ``folder``.

    Returns their paths, in this order; without pandas or pyarrow, ``scores.parquet`` is omitted.

    Raises:
        OSError: if ``folder`` cannot be written.
    """
    # pandas would write other bytes of CSV than an installation without it, and formulas.
    contents = {
        "scores.csv": scores_csv(rows).encode(),
        "scores.json": scores_json(rows).encode(),
    }
    try:
        contents["scores.parquet"] = _parquet(rows)
    except ModuleNotFoundError as error:
        if error.name not in {"pandas", "pyarrow"}:
            raise
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        write_atomically(folder / name, content)
    return [folder / name for name in contents]


def _parquet(rows: Sequence[Mapping[str, object]]) -> bytes:
    import_module("pyarrow")  # whose absence pandas reports by another exception
    sink = io.BytesIO()
    _score_frame(rows).to_parquet(sink, index=False)
    return sink.getvalue()


def _require_pandas() -> None:
    """Raise before results are read, which takes long, if pandas is missing."""
    try:
        import_module("pandas")
    except ModuleNotFoundError as error:
        raise missing_package((error.name or "").partition(".")[0]) from error


def _officials(path: str | Path, *, curves: bool = False) -> list[Official]:
    barred: list[Finding] = []
    packages = found_packages([Path(path)], barred)
    results = with_context(with_places(judged_scores(packages, barred=barred, curves=curves)))
    for finding in dict.fromkeys(barred):
        warnings.warn(finding.sentence, stacklevel=3)
    if not results and not barred:
        raise no_results([Path(path)])
    return results


def _rows(results: Iterable[Official]) -> Iterator[_Row]:
    for result in results:
        for run, file in zip(result.score.runs, result.files, strict=True):
            yield _Row(result, run, file)


def _score_frame(rows: Sequence[Mapping[str, object]]) -> DataFrame:
    values = {name: [flat_value(row[name]) for row in rows] for name in METRICS}
    return _frame(tuple(METRICS.values()), values)


def _frame_of_rows(columns: Sequence[Column], rows: Iterable[_Row]) -> DataFrame:
    values: dict[str, list[object]] = {column.name: [] for column in columns}
    for row in rows:
        for column in columns:
            values[column.name].append(_known(column.source(row)))
    return _frame(columns, values)


def _frame(
    columns: Sequence[Metric] | Sequence[Column], values: Mapping[str, Sequence[object]]
) -> DataFrame:
    """Return ``values`` as typed columns: text escaped, and what a type cannot hold as missing."""
    import pandas as pd

    frame = pd.DataFrame(
        {
            column.name: pd.array(list(map(_cell, values[column.name])), dtype=_DTYPES[column.kind])
            for column in columns
        }
    )
    frame.attrs["units"] = {column.name: column.unit for column in columns if column.unit}
    frame.attrs["docs"] = {column.name: column.doc for column in columns}
    return frame


def _known(value: object) -> object:
    """Return None for empty text, by which files state that a text is unknown, else ``value``."""
    return None if value == "" else value


def _cell(value: object) -> object:
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, int) and abs(value) > _MOST_WHOLE:
        return None
    return value
