"""Presets: names for the plans of published systems, expanded before a plan is parsed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding
from hybridperf.spelling import did_you_mean

__all__ = ["PRESETS", "Preset", "expand_presets"]


@dataclass(frozen=True, slots=True)
class Preset:
    """A plan with parameters, written ``name(parameter=value,...)``."""

    name: str
    text: str  #: the plan, with each parameter in braces
    meaning: str
    source: str

    @property
    def parameters(self) -> tuple[str, ...]:
        """Return the names of the parameters, in the order of the plan's text."""
        return tuple(re.findall(r"\{(\w+)\}", self.text))


#: by name; where a paper's text is not public, the definition is ours
PRESETS: Final = {
    preset.name: preset
    for preset in (
        Preset(
            name="gropipe",
            text="dp={groups},pp={stages},staleness=1",
            meaning="a pipeline in each group, and between groups data parallelism whose "
            "communication is delayed by a step",
            source="our definition, after the abstract of GroPipe (Liu et al. 2025)",
        ),
        Preset(
            name="pipedream_2bw",
            text="pp={stages},staleness=1,flush=off",
            meaning="a pipeline without a flush, with two versions of the weights",
            source="PipeDream-2BW (Narayanan et al. 2021)",
        ),
    )
}

_CALL: Final = re.compile(r"\s*(\w+)\s*\(([^()]*)\)\s*")


def expand_presets(text: str) -> str:
    """Return ``text`` with each preset, such as ``gropipe(groups=2,stages=2)``, written as fields.

    Raises:
        UserError: exit status 2, naming an unknown preset or what its parameters are.
    """
    return _CALL.sub(lambda call: _expanded(text, call[1], call[2]), text)


def _expanded(text: str, name: str, arguments: str) -> str:
    def refuse(expected: str, found: str, remedy: str) -> UserError:
        finding = Finding("plan.text", expected, found, remedy, path=f"plan {text!r}")
        return UserError(finding, ExitCode.USAGE)

    if (preset := PRESETS.get(name)) is None:
        hint = did_you_mean(name, PRESETS, "write fields")
        raise refuse(f"a preset out of {', '.join(PRESETS)}", repr(name), hint)
    pairs = [part.partition("=") for part in arguments.split(",")]
    values = {key.strip(): value.strip() for key, _, value in pairs}
    if len(pairs) != len(values) or values.keys() != {*preset.parameters}:
        example = ",".join(f"{parameter}=2" for parameter in preset.parameters)
        raise refuse(
            f"{name} with {' and '.join(preset.parameters)}",
            repr(arguments),
            f'write "{name}({example})"',
        )
    return preset.text.format_map(values)
