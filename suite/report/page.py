"""The leaderboard as one page that needs nothing but itself."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from typing import TYPE_CHECKING

import jinja2
from markupsafe import Markup

from suite.findings import visible
from suite.report import curves, figures, scaling_claims, strip, why_bars
from suite.report.attempts import attempts_of, hashes_of
from suite.report.commands import reproduce_commands
from suite.report.evidence import evidence_of
from suite.report.loader import loader_sentence
from suite.report.machine import device_count, devices, machine_rows
from suite.report.plan_chips import plan_chips, plan_ranks
from suite.report.why import seconds_per_sample
from suite.scores.interval import METHOD
from suite.scores.scaling import METHOD as SCALING_METHOD
from suite.scores.scaling import METRICS, metric_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from suite.report.board import Board

__all__ = ["leaderboard_page"]

_TEMPLATES = resources.files("suite.report") / "templates"


def leaderboard_page(boards: Sequence[Board]) -> str:
    """Return the whole page."""
    style, script = _source("page.css"), _source("page.js")
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
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


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        loader=jinja2.PackageLoader("suite.report"),
        finalize=_finalize,
    )
    environment.filters |= {
        "count": figures.count,
        "ratio": figures.ratio,
        "seconds": figures.seconds,
        "share": figures.share,
    }
    environment.globals |= {
        "attempts_of": attempts_of,
        "device_count": device_count,
        "devices": devices,
        "evidence_of": evidence_of,
        "hashes_of": hashes_of,
        "loader_sentence": loader_sentence,
        "machine_rows": machine_rows,
        "plan_chips": plan_chips,
        "plan_ranks": plan_ranks,
        "reproduce_commands": reproduce_commands,
        "seconds_per_sample": seconds_per_sample,
        "seconds_range": figures.seconds_range,
        "claimed_share": scaling_claims.claimed_share,
        "curve_axes": curves.curve_axes,
        "draw_axis": strip.draw_axis,
        "draw_backdrop": curves.draw_backdrop,
        "draw_bars": why_bars.draw_bars,
        "draw_panel": curves.draw_panel,
        "draw_scaling": scaling_claims.draw_scaling,
        "draw_strip": strip.draw_strip,
        "figure_by": scaling_claims.figure_by,
        "metric_words": metric_words,
        "scaling_groups": scaling_claims.scaling_groups,
        "scaling_method": SCALING_METHOD,
        "scaling_metrics": METRICS,
        "strip_scale": strip.strip_scale,
        "why_scale": why_bars.why_scale,
        "unknown": figures.UNKNOWN,
    }
    return environment


def _source(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def _finalize(value: object) -> object:
    """Show control and bidirectional characters of whatever text reaches the page."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _digest(source: str) -> str:
    digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
    return f"sha256-{digest}"
