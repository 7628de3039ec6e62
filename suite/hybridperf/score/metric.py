"""Define a metric of a result: its column in data files and its format in tables."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, get_args

if TYPE_CHECKING:
    from collections.abc import Callable

    from hybridperf.score.official import Official

__all__ = ["TABLES", "Kind", "Metric", "Table"]

Kind = Literal["text", "whole", "number", "truth", "list"]
#: formatted tables: terminal tables of this suite's and MLPerf's results, HTML and Markdown of this
#: suite's, HTML of MLPerf's rounds, compare
Table = Literal["ours", "mlperf", "page", "markdown", "site", "compare"]
TABLES: Final[tuple[Table, ...]] = get_args(Table)


@dataclass(frozen=True, slots=True)
class Metric:
    """One column: its value, documentation and formatting."""

    name: str  #: column name in CSV, JSON and Parquet, unit included
    doc: str
    source: Callable[[Official], object]  #: returns None if unknown
    kind: Kind = "number"
    unit: str = ""
    better: Literal["lower", "higher"] | None = None
    heading: str = ""  #: column heading; empty for metrics in data files only
    form: str = ",.2f"  #: format specification for tables
    show: Callable[[Official], str] | None = None  #: replaces ``form``; "" if unknown
    tables: tuple[Table, ...] = TABLES  #: tables that show it, given a heading
    keep: int = 1  #: priority in narrow terminals: the lowest is dropped first, 9 never

    def text(self, result: Official) -> str:
        """Return the formatted value for ``result``; "" if unknown."""
        if self.show is not None:
            return self.show(result)
        value = self.source(result)
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            return ""
        return str(value) if isinstance(value, str | bool) else format(value, self.form)

    def key(self, result: Official) -> str:
        """Return the text by which a page's script sorts; "" if unknown."""
        value = self.source(result)
        if value is None or isinstance(value, list):
            return self.text(result) if value else ""
        return f"{value:.9g}" if isinstance(value, float) else str(value)
