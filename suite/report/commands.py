"""The commands that made a result, as far as they are safe to hand to a reader who copies them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from suite.report.facts import texts_of

if TYPE_CHECKING:
    from suite.logs.package import Result

__all__ = ["reproduce_commands"]

# A manifest is untrusted and this text ends up in a shell, so nothing a shell would act on passes.
_HARMLESS: Final = re.compile(r"hybridperf run [a-z0-9][A-Za-z0-9 =,._/+-]{0,500}")


def reproduce_commands(result: Result) -> list[str]:
    """Return the distinct commands in the manifests that are plain ``hybridperf run`` commands."""
    return [
        command
        for command in texts_of(result.runs, "command")
        if _HARMLESS.fullmatch(command) is not None
    ]
