"""Write the leaderboard as one self-contained HTML page."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from typing import TYPE_CHECKING, Final

import jinja2
from markupsafe import Markup

from hybridperf.findings import visible
from hybridperf.plan import plan_chips
from hybridperf.report import curves, evidence, figures, gantt, scaling_claims, strip
from hybridperf.rules.levels import LEVELS
from hybridperf.score.interval import METHOD
from hybridperf.score.metrics import metrics_of
from hybridperf.score.ranking import means_of
from hybridperf.score.scaling import METHOD as SCALING_METHOD
from hybridperf.score.scaling import METRICS, metric_words
from hybridperf.score.scaling.side import plan_ranks
from hybridperf.score.slow_steps import why_slow
from hybridperf.system.catalog import accelerators_per_node, device_count
from hybridperf.system.describe import show

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hybridperf.report.board import Board

__all__ = ["devices", "digest", "environment", "leaderboard_page", "machine_rows", "source"]

_STANDINGS = {
    "ranked": "",
    "provisional": "provisional",
    "missed": "missed the target",
    "disputed": "disputed",
    "not judged": "not judged",
    "too fast": "too fast",
    "invalid": "invalid",
}
_TEMPLATES = resources.files("hybridperf.report") / "templates"


def leaderboard_page(boards: Sequence[Board]) -> str:
    """Return the HTML page of ``boards``."""
    style, script = source("page.css"), source("page.js")
    policy = (
        f"default-src 'none'; style-src '{digest(style)}'; script-src '{digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        _environment()
        .get_template("index.html.j2")
        .render(
            boards=boards,
            policy=policy,
            style=Markup(style),  # noqa: S704 - our own file
            script=Markup(script),  # noqa: S704 - our own file
            method=METHOD,
        )
    )


def environment(**names: object) -> jinja2.Environment:
    """Return the environment of the templates, which escapes all text, with ``names`` for them."""
    made = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        loader=jinja2.PackageLoader("hybridperf.report"),
        finalize=_finalize,
    )
    made.filters |= {
        "count": figures.count,
        "ratio": figures.ratio,
        "seconds": figures.seconds,
        "share": figures.share,
    }
    made.globals |= names
    return made


def _environment() -> jinja2.Environment:
    return environment(
        attempts_of=evidence.attempts_of,
        device_count=device_count,
        devices=devices,
        evidence_of=evidence.evidence_of,
        hashes_of=evidence.hashes_of,
        loader_sentence=figures.loader_sentence,
        machine_rows=machine_rows,
        plan_chips=plan_chips,
        plan_ranks=plan_ranks,
        means_of=means_of,
        metrics=metrics_of("page"),
        levels=LEVELS,
        reproduce_commands=evidence.reproduce_commands,
        seconds_range=figures.seconds_range,
        claimed_share=scaling_claims.claimed_share,
        curve_axes=curves.curve_axes,
        draw_axis=strip.draw_axis,
        draw_backdrop=curves.draw_backdrop,
        draw_bars=strip.draw_bars,
        draw_panel=curves.draw_panel,
        draw_scaling=scaling_claims.draw_scaling,
        draw_strip=strip.draw_strip,
        draw_timelines=gantt.draw_timelines,
        figure_by=scaling_claims.figure_by,
        metric_words=metric_words,
        scaling_groups=scaling_claims.scaling_groups,
        scaling_method=SCALING_METHOD,
        scaling_metrics=METRICS,
        standing_words=_STANDINGS,
        strip_scale=strip.strip_scale,
        timelines_of=gantt.timelines_of,
        why_scale=strip.why_scale,
        why_slow=why_slow,
        unknown=figures.UNKNOWN,
    )


def source(name: str) -> str:
    """Return the text of a file of the templates."""
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def _finalize(value: object) -> object:
    """Escape control and bidirectional characters in all text of the page."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def digest(text: str) -> str:
    """Return the hash by which a content security policy allows the inline source ``text``."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


_MOST_ROWS: Final = 60
_MOST_CHARACTERS: Final = 500


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
    if accelerators_per_node(facts):
        return _counted(number, _text(facts, "accelerator_model_name"), "accelerator")
    return _counted(number, f"{model} core".strip(), "core")


def _counted(number: int, name: str, otherwise: str) -> str:
    return f"{number:,} \N{MULTIPLICATION SIGN} {name or otherwise}"


def _text(facts: Mapping[str, object], key: str) -> str:
    value = facts.get(key)
    return value.strip()[:_MOST_CHARACTERS] if isinstance(value, str) else ""
