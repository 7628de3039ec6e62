"""Write the leaderboard: one self-contained HTML page, Markdown, CSV and JSON."""

from __future__ import annotations

import base64
import functools
import hashlib
import itertools
import re
from importlib import resources
from typing import TYPE_CHECKING, Final

import jinja2
from markupsafe import Markup

from hybridperf.findings import visible
from hybridperf.plan import plan_chips
from hybridperf.report import evidence, feed, scaling, svg, tables
from hybridperf.report.board import boards, contents_of
from hybridperf.report.comparison import comparison_text, incomparable
from hybridperf.report.judgement import read_entries
from hybridperf.report.sentences import board_sentence
from hybridperf.rules.levels import LEVELS
from hybridperf.run.files import write_atomically
from hybridperf.score.compare import compare
from hybridperf.score.metrics import metrics_of
from hybridperf.score.projection import why_slow
from hybridperf.score.ranking import means_of
from hybridperf.score.scaling import SPEED_METRICS, metric_words, plan_ranks
from hybridperf.score.statistics import MEAN_INTERVAL, RATIO_INTERVAL
from hybridperf.score.validity import Judgement
from hybridperf.system.catalog import accelerators_per_node, device_count
from hybridperf.system.describe import show

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from hybridperf.findings import Finding
    from hybridperf.report.board import Board, Row
    from hybridperf.report.judgement import JudgedResult
    from hybridperf.report.scaling import ScalingGroup
    from hybridperf.score.metrics import Metric

__all__ = [
    "build_report",
    "devices",
    "escape_markdown",
    "leaderboard_markdown",
    "leaderboard_page",
    "machine_rows",
    "page_templates",
    "render_page",
    "write_files",
    "write_report",
]

_TEMPLATES: Final = resources.files("hybridperf.report") / "templates"
_STANDINGS: Final = {
    "ranked": "",
    **{each.value: each.value for each in Judgement},
    "too fast": "too fast",
}
_COMPARISON_WIDTH: Final = 100  #: characters
_MOST_COMPARED: Final = 30  #: results of a leaderboard, and leaderboards, compared in pairs
_OTHERWISE: Final = (
    f"This page compares the first {_MOST_COMPARED} results of one leaderboard; "
    "'hybridperf compare' compares any two of one task."
)
_MOST_ROWS: Final = 60  #: of a system's description
_MOST_CHARACTERS: Final = 500  #: of a value in it


def build_report(root: Path, out: Path, barred: list[Finding] | None = None) -> list[Path]:
    """Write the report of all results at or below ``root`` to ``out`` and return its files.

    Findings on unreadable files and folders are appended to ``barred``.

    Raises:
        OSError: if ``out`` cannot be written.
    """
    return write_report(read_entries(root, barred), root, out)


def write_report(
    entries: Iterable[JudgedResult], root: Path, out: Path, *, claims: bool = False
) -> list[Path]:
    """Write the report of ``entries`` at or below ``root`` to ``out``, and return its files.

    With ``claims``, the page links to the page of claims beside it.

    The output is deterministic, and each file is replaced atomically. The page links to logs,
    manifests and system descriptions if `evidence.may_link`.

    Raises:
        OSError: if ``out`` cannot be written.
    """
    leaderboards = boards(entries)
    linked = out if evidence.may_link(root, out) else None
    writers: dict[str, Callable[[Sequence[Board]], str]] = {
        "index.html": lambda all_boards: leaderboard_page(all_boards, linked, claims=claims),
        "leaderboard.md": leaderboard_markdown,
        "leaderboard.csv": tables.leaderboard_csv,
        "leaderboard.json": tables.leaderboard_json,
        "feed.xml": feed.leaderboard_feed,
    }
    texts = {name: write(leaderboards) for name, write in writers.items()}
    return write_files((texts | feed.badges(leaderboards)).items(), out)


def write_files(files: Iterable[tuple[str, str]], out: Path) -> list[Path]:
    """Write pairs of name and text to the folder ``out``, each atomically; return their paths.

    Raises:
        OSError: if ``out`` cannot be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in files:
        write_atomically(out / name, text.encode())
        written.append(out / name)
    return written


# HTML


def leaderboard_page(
    boards: Sequence[Board], out: Path | None = None, *, claims: bool = False
) -> str:
    """Return the HTML page of ``boards``; in the folder ``out``, it links to files of results.

    With ``claims``, it also links to the page of claims beside it.
    """
    values = {
        "boards": boards,
        "comparisons": _comparisons(boards),
        "facts": [metric for metric in metrics_of("page") if metric.kind == "text"],
        "out": out,
        "claims": claims,
    }
    template = _templates().get_template("index.html.j2")
    return render_page(template, values, ["board.css"], script_files=["board.js"])


def _known_metrics(rows: Sequence[Row]) -> list[Metric]:
    """Return the metrics with a number for any of ``rows``."""
    return [
        metric
        for metric in metrics_of("page")
        if metric.kind != "text" and any(metric.text(row.entry.official) for row in rows)
    ]


def _comparisons(boards: Sequence[Board]) -> dict[str, object]:
    """Return the text of every comparison that the page shows.

    ``results``: of two results of a leaderboard, by their anchors. ``boards``: why results of two
    leaderboards are not compared, by the anchors of the leaderboards. ``otherwise``: for the rest.
    """
    results, between = dict[str, dict[str, str]](), dict[str, dict[str, str]]()
    for board in boards:
        entries = [row.entry for row in board.rows[:_MOST_COMPARED]]
        for a, b in itertools.combinations(entries, 2):
            results.setdefault(a.anchor, {})[b.anchor] = _compared(a, b)
    firsts = [(board.anchor, board.rows[0].entry) for board in boards if board.rows]
    for (name, one), (other_name, other) in itertools.combinations(firsts[:_MOST_COMPARED], 2):
        if why := incomparable(one, other):
            between.setdefault(name, {})[other_name] = why.sentence
    return {"results": results, "boards": between, "otherwise": _OTHERWISE}


def _compared(a: JudgedResult, b: JudgedResult) -> str:
    if why := incomparable(a, b):
        return why.sentence
    return comparison_text(a, b, compare(a.official, b.official), _COMPARISON_WIDTH)


@functools.cache
def _templates() -> jinja2.Environment:
    return page_templates(
        attempts_of=evidence.attempts_of,
        board_sentence=board_sentence,
        busy_sentence=tables.busy_sentence,
        contents_of=contents_of,
        efficiency_words=scaling.efficiency_words,
        curve_axes=svg.curve_axes,
        device_count=device_count,
        devices=devices,
        draw_axis=svg.draw_axis,
        draw_bars=svg.draw_bars,
        draw_curves=svg.draw_curves,
        draw_panel=svg.draw_panel,
        draw_scaling=scaling.draw_scaling,
        draw_strip=svg.draw_strip,
        draw_timelines=svg.draw_timelines,
        evidence_of=evidence.evidence_of,
        hashes_of=evidence.hashes_of,
        history=feed.history,
        known_metrics=_known_metrics,
        levels=LEVELS,
        links_of=evidence.links_of,
        loader_sentence=tables.loader_sentence,
        machine_rows=machine_rows,
        means_of=means_of,
        method=MEAN_INTERVAL,
        metric_words=metric_words,
        p_value=tables.p_value,
        plan_chips=plan_chips,
        plan_ranks=plan_ranks,
        reproduce_steps=evidence.reproduce_steps,
        scaling_groups=scaling.scaling_groups,
        scaling_method=RATIO_INTERVAL,
        scaling_metrics=SPEED_METRICS,
        seconds_range=tables.seconds_range,
        standing_words=_STANDINGS,
        strip_marks=svg.strip_marks,
        strip_scale=svg.strip_scale,
        timelines_of=evidence.timelines_of,
        why_scale=svg.why_scale,
        why_slow=why_slow,
    )


def page_templates(**names: object) -> jinja2.Environment:
    """Return the templates of pages, which escape all text, with ``names`` for them."""
    templates = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        loader=jinja2.PackageLoader("hybridperf.report"),
        finalize=_finalize,
    )
    templates.policies["json.dumps_kwargs"] = {"ensure_ascii": False}
    formats = (tables.count, tables.mean_seconds, tables.ratio, tables.seconds)
    templates.filters |= {each.__name__: each for each in formats}
    templates.globals |= {"unknown": tables.UNKNOWN, **names}
    return templates


def render_page(
    template: jinja2.Template,
    values: Mapping[str, object],
    style_files: Sequence[str] = (),
    script_files: Sequence[str] = (),
) -> str:
    """Return the page of a ``template`` that extends ``layout.html.j2``.

    Its style is ``page.css``, then ``style_files``, its script ``page.js``, then ``script_files``.
    The content security policy allows these inline sources and nothing else.
    """
    style = "".join(map(_source, ("page.css", *style_files)))
    script = "".join(map(_source, ("page.js", *script_files)))
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return template.render(
        values,
        policy=policy,
        style=Markup(style),  # noqa: S704 - our own files
        script=Markup(script),  # noqa: S704 - our own files
    )


def _source(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """Return the hash by which a content security policy allows the inline source ``text``."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _finalize(value: object) -> object:
    """Escape control and bidirectional characters in all text of the page."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def machine_rows(description: Mapping[str, object] | None) -> list[tuple[str, str]]:
    """Return (label, value) pairs of the known facts, else of MLPerf's fields."""
    if description is None:
        return []
    try:
        rows = [(label, str(value)) for label, value in show(description)]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, ArithmeticError):
        rows = [
            (label.replace("_", " "), str(value))
            for label, value in description.items()
            if isinstance(value, str | int | float) and value != ""
        ]
    return [(label, value[:_MOST_CHARACTERS]) for label, value in rows[:_MOST_ROWS]]


def devices(description: Mapping[str, object] | None) -> str:
    """Return a short description of the system's accelerators, or else of its processors."""
    facts, number = description or {}, device_count(description)
    model = _text(facts, "host_processor_model_name")
    if number is None:
        return model
    name = f"{model} core".strip()
    if accelerators_per_node(facts):
        name = _text(facts, "accelerator_model_name") or "accelerator"
    return f"{number:,} \N{MULTIPLICATION SIGN} {name}"


def _text(facts: Mapping[str, object], key: str) -> str:
    value = facts.get(key)
    return value.strip()[:_MOST_CHARACTERS] if isinstance(value, str) else ""


# Markdown

_MARKS: Final = re.compile(r"[\\`*_{}\[\]()#!|~$@]|(?<=\bwww)\.|:(?=//)")
_ENTITIES: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_NOTE: Final = (
    "Time to train is the mean of all completed runs; a run that missed the target counts as long "
    "as it ran, so that the mean is a lower bound (≥). Results that tie by Welch's t test at 5 % "
    "may share places. ÷ first is the mean time relative to the first result; it is the product of "
    "samples ÷ and seconds per sample ÷. [index.html](index.html) shows every run."
)


def escape_markdown(text: str) -> str:
    """Escape ``text`` for Markdown and HTML."""
    return _MARKS.sub(r"\\\g<0>", visible(text)).translate(_ENTITIES)


def leaderboard_markdown(boards: Sequence[Board]) -> str:
    """Return one table per leaderboard, its broken results and the commands to reproduce it."""
    lines = ["# HybridPerf leaderboard", ""]
    if not boards:
        lines += ["No results yet. Make one with `hybridperf run resnet/laptop --plan dp=2`.", ""]
    for board in boards:
        lines += _board_lines(board)
    return "\n".join([*lines, _NOTE, ""])


def _board_lines(board: Board) -> Iterator[str]:
    version = f"version {board.version}, " if board.version else ""
    yield f"## {escape_markdown(f'{board.benchmark}, {version}{board.division} division')}"
    yield ""
    if board.rows:
        text = {"organisation", "system", "plan"}
        text |= {metric.heading for metric in metrics_of("markdown") if metric.kind == "text"}
        rows = [_cells(row) for row in board.rows]
        yield _line(rows[0])
        yield _line(":--" if heading in text else "--:" for heading in rows[0])
        yield from (_line(cells.values()) for cells in rows)
        yield ""
    yield from _bullets(
        f"{_name(row.entry)}, no place: {escape_markdown(row.entry.no_place)}"
        for row in board.rows
        if row.entry.official.place is None
    )
    yield from _bullets(
        f"{_name(row.entry)}: {sentence}"
        for row in board.rows
        for sentence in (
            tables.busy_sentence(row.entry.score),
            tables.loader_sentence(row.entry.score),
        )
        if sentence
    )
    for group in scaling.scaling_groups(board):
        yield from _scaling_lines(group)
    if board.invalid:
        yield from ("Broken, and therefore left out:", "")
    yield from _bullets(f"{_name(entry)}: {_errors(entry)}" for entry in board.invalid)
    commands = dict.fromkeys(
        command for row in board.rows for command in evidence.reproduce_commands(row.entry.result)
    )
    if commands:
        yield from ("To reproduce:", "", "```sh", *commands, "```", "")


def _cells(row: Row) -> dict[str, str]:
    """Return the cells of a row by heading."""
    score, counts = row.entry.score, evidence.evidence_of(row.entry)
    interval, why = score.interval_s, row.decision.why
    return {
        "place": str(row.entry.official.place or row.entry.standing),
        "organisation": escape_markdown(score.org),
        "system": escape_markdown(score.system),
        "plan": escape_markdown(score.plan) or tables.UNKNOWN,
        "ranks": tables.count(plan_ranks(score.plan)),
        "time to train, s": tables.mean_seconds(score),
        "95 % interval, s": (
            tables.seconds_range(interval.low, interval.high) if interval else tables.UNKNOWN
        ),
        "runs": f"{len(score.completed)} of {len(score.runs)}",
        "missed": tables.count(score.missed),
        "÷ first": tables.ratio(row.decision.ratio),
        "samples ÷": tables.ratio(why.samples_ratio if why else None),
        "seconds per sample ÷": tables.ratio(why.seconds_per_sample_ratio if why else None),
        **{
            metric.heading: escape_markdown(metric.text(row.entry.official)) or tables.UNKNOWN
            for metric in metrics_of("markdown")
        },
        "re-scored": f"{counts.rescored} of {counts.completed}",
    }


def _bullets(items: Iterable[str]) -> Iterator[str]:
    lines = [f"- {item}" for item in items]
    yield from (*lines, "") if lines else ()


def _scaling_lines(group: ScalingGroup) -> Iterator[str]:
    start = escape_markdown(group.start)
    yield f"Scaling efficiency from {start}, {escape_markdown(group.kind)}, with 95 % intervals:"
    yield ""
    yield _line(["system", "devices", *map(metric_words, SPEED_METRICS), "above 100 % by"])
    yield _line([":--", "--:", *["--:"] * len(SPEED_METRICS), ":--"])
    for entry, scaled in group.results:
        shares = [scaling.efficiency_words(scaled.rated.get(metric)) for metric in SPEED_METRICS]
        system = escape_markdown(entry.score.system)
        count = tables.count(scaled.side.devices.used)
        yield _line([system, count, *shares, ", ".join(scaled.causes) or tables.UNKNOWN])
    yield ""


def _name(entry: JudgedResult) -> str:
    return f"{escape_markdown(entry.score.org)}, {escape_markdown(entry.score.system)}"


def _errors(entry: JudgedResult) -> str:
    more = f" (and {len(entry.errors) - 1} more)" if len(entry.errors) > 1 else ""
    return f"{escape_markdown(entry.errors[0].sentence)}{more}"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
