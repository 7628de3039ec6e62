"""``hybridperf completion``: a script that completes commands in a shell."""

from __future__ import annotations

import argparse

from suite.cli.parser import build_parser
from suite.cli.printing import print_line
from suite.refusal import ExitCode
from suite.tasks.registry import task_names

__all__ = ["execute"]

_BASH = """\
_hybridperf() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" words=""
    if [ "$COMP_CWORD" -eq 1 ]; then words="{commands}"; else
        case "${{COMP_WORDS[1]}}" in
{cases}
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    if [ "${{#COMPREPLY[@]}}" -eq 0 ]; then COMPREPLY=($(compgen -f -- "$word")); fi
}}
complete -F _hybridperf hybridperf
"""


def execute(options: argparse.Namespace) -> ExitCode:
    """Print the script for the shell asked for."""
    words = _words()
    if options.shell == "fish":
        for command, choices in words.items():
            print_line(f"complete -c hybridperf -f -n __fish_use_subcommand -a {command}")
            seen = f"__fish_seen_subcommand_from {command}"
            print_line(f"complete -c hybridperf -n '{seen}' -a '{' '.join(choices)}'")
        return ExitCode.OK
    cases = "\n".join(
        f'            {name}) words="{" ".join(choices)}" ;;' for name, choices in words.items()
    )
    if options.shell == "zsh":
        print_line("autoload -U +X bashcompinit && bashcompinit")
    print_line(_BASH.format(commands=" ".join(words), cases=cases).rstrip())
    return ExitCode.OK


def _words() -> dict[str, list[str]]:
    """Return for each command what may follow it."""
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
        words[name] = options + choices + (task_names() if name in {"run", "rcp", "scale"} else [])
    return words
