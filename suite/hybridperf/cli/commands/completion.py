"""``hybridperf completion``: print a shell's completion script."""

from __future__ import annotations

import argparse
from typing import Final

from hybridperf.cli.main import build_parser
from hybridperf.cli.printing import print_line
from hybridperf.errors import ExitCode
from hybridperf.plan import complete_plan
from hybridperf.tasks.registry import task_names

__all__ = ["EXAMPLES", "add_arguments", "execute"]

EXAMPLES: Final = """\
eval "$(hybridperf completion bash)"
hybridperf completion fish > ~/.config/fish/completions/hybridperf.fish"""

_OF_TASKS: Final = {"plan", "run", "rcp", "scale"}
_BASH = """\
_hybridperf() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" words=""
    if [ "$COMP_CWORD" -eq 1 ]; then words="{commands}"; else
        case "${{COMP_WORDS[1]}}" in
{cases}
        esac
    fi
    local at="$COMP_CWORD" text=""  # what follows --plan: bash makes words of it at each "="
    while [ "$at" -gt 1 ] && [[ "${{COMP_WORDS[at]}}" != -* ]]; do
        text="${{COMP_WORDS[at]}}$text"; at=$((at - 1))
    done
    if [ "${{COMP_WORDS[at]}}" = --plan ]; then
        if [ "$word" = "=" ]; then word=""; fi
        local before="${{text%"$word"}}" each
        COMPREPLY=()
        for each in $(hybridperf completion bash --plan "$text"); do
            COMPREPLY+=("${{each#"$before"}}")
        done
        compopt -o nospace 2> /dev/null
        return
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    if [ "${{#COMPREPLY[@]}}" -eq 0 ]; then COMPREPLY=($(compgen -f -- "$word")); fi
}}
complete -F _hybridperf hybridperf
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``hybridperf completion``."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    parser.add_argument(
        "--plan",
        metavar="TEXT",
        help="print the completions of the plan TEXT; used by the script",
    )


def execute(options: argparse.Namespace) -> ExitCode:
    """Print the script for the given shell, or the completions of a plan."""
    if options.plan is not None:
        for text in complete_plan(options.plan):
            print_line(text)
        return ExitCode.OK
    words = _words()
    if options.shell == "fish":
        for command, choices in words.items():
            print_line(f"complete -c hybridperf -f -n __fish_use_subcommand -a {command}")
            seen = f"__fish_seen_subcommand_from {command}"
            print_line(f"complete -c hybridperf -n '{seen}' -a '{' '.join(choices)}'")
            if "--plan" in choices:
                plans = "(hybridperf completion fish --plan (commandline -ct))"
                print_line(f"complete -c hybridperf -n '{seen}' -l plan -x -a '{plans}'")
        return ExitCode.OK
    cases = "\n".join(
        f'            {name}) words="{" ".join(choices)}" ;;' for name, choices in words.items()
    )
    if options.shell == "zsh":
        print_line("autoload -U +X bashcompinit && bashcompinit")
    print_line(_BASH.format(commands=" ".join(words), cases=cases).rstrip())
    return ExitCode.OK


def _words() -> dict[str, list[str]]:
    """Return the options and values that complete each command, by command."""
    (commands,) = (
        action
        for action in build_parser()._actions  # noqa: SLF001 - argparse has no public way to ask
        if isinstance(action, argparse._SubParsersAction)  # noqa: SLF001 - as above
    )
    words = {}
    for name, parser in commands.choices.items():
        actions = parser._actions  # noqa: SLF001 - as above
        options = [option for action in actions for option in action.option_strings]
        choices = [choice for action in actions for choice in action.choices or ()]
        words[name] = options + choices + (task_names() if name in _OF_TASKS else [])
    return words
