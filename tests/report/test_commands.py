from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from suite.logs.package import find_results, read_result
from suite.report.commands import reproduce_commands

if TYPE_CHECKING:
    from tests.report.conftest import Submissions


def _commands(submissions: Submissions, command: object) -> list[str]:
    submissions.add([1, 2, 3], manifest={"command": command})
    return reproduce_commands(read_result(find_results(submissions.root)[0]))


def test_a_command_stands_once(submissions: Submissions) -> None:
    command = "hybridperf run resnet/laptop --plan dp=2,pp=2 --set optimizer.lr=0.2 --runs 5"

    assert _commands(submissions, command) == [command]


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf /",
        "hybridperf run x; rm -rf /",
        "hybridperf run $(reboot)",
        "hybridperf run `reboot`",
        "hybridperf run x | sh",
        "hybridperf run x && reboot",
        "hybridperf run x > /etc/passwd",
        "hybridperf run x\nreboot",
        "hybridperf run 'x'",
        "hybridperf run ~root",
        "hybridperf run",
        "",
        7,
        None,
        ["hybridperf run x"],
    ],
)
def test_nothing_that_a_shell_would_act_on_is_handed_on(
    submissions: Submissions, command: object
) -> None:
    assert _commands(submissions, command) == []
