"""How the documentation is built: its tables of metrics and commands come from the code."""

# ruff: noqa: SLF001 - argparse has no public way to ask a parser for its arguments

import argparse
import re

project = "HybridPerf"
author = "The HybridPerf developers"
extensions = ["myst_parser"]
html_theme = "furo"
exclude_patterns = ["_build", "examples"]
myst_heading_anchors = 3  # pages link to sections of others
smartquotes = False  # would make dashes of the hyphens of options

_MARKS = re.compile(r"[\\`*_{}\[\]<>#|~$]")


def setup(app):
    """Put the tables of columns and of commands where a page asks for them."""
    from hybridperf.report.frames import CURVE_COLUMNS, RUN_COLUMNS, columns_markdown
    from hybridperf.report.tables import metrics_markdown

    tables = {
        "commands": commands_markdown,
        "metrics": metrics_markdown,
        "columns of runs": lambda: columns_markdown(RUN_COLUMNS),
        "columns of evaluations": lambda: columns_markdown(CURVE_COLUMNS),
    }

    def insert(_app, _name, source):
        for name, table in tables.items():
            place = f"<!-- {name} -->"
            if place in source[0]:
                source[0] = source[0].replace(place, table())

    app.connect("source-read", insert)


def commands_markdown():
    """Return a section for each command: what it does, its arguments, and examples."""
    from hybridperf.cli.main import COMMANDS, build_parser

    (commands,) = (
        action
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    return "\n".join(line for name in COMMANDS for line in _section(commands.choices[name]))


def _section(command):
    examples, _, _ = command.epilog.removeprefix("examples:\n").partition("\n\n")
    yield from (f"## {command.prog}", "", command.description, "")
    yield from ("| argument | does |", "|---|---|")
    command.color = False  # Python 3.14 has escape codes for terminals
    formatter = command._get_formatter()
    for action in command._actions:
        if not isinstance(action, argparse._HelpAction):
            words = formatter._format_action_invocation(action)
            text = formatter._expand_help(action) if action.help else ""
            text = _MARKS.sub(r"\\\g<0>", text)
            yield f"| `{words}` | {text} |"
    yield from ("", "```sh", *(line.strip() for line in examples.splitlines()), "```", "")
