"""What the results of a leaderboard say about hybrid plans, in one sentence, and what to type next.

Terminal, page and README state the same finding: the fastest result against one process, by the
test of ``hybridperf compare``.
"""

from __future__ import annotations

import math
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.findings import visible
from hybridperf.report.tables import p_value, seconds
from hybridperf.score.ranking import decide, means_of
from hybridperf.score.scaling import plan_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridperf.report.board import Board
    from hybridperf.report.judgement import JudgedResult

__all__ = ["board_sentence", "fastest_pair", "next_commands"]

_ONE: Final = "one process"
#: what plans 8 GPUs on any machine, with its data and without
_EIGHT: Final = "plan resnet/workstation --devices 8 --system a100-sxm"


def board_sentence(board: Board) -> str:
    """Return whether the fastest result of ``board`` is faster than one process.

    Where one process is the fastest, it is compared with the fastest hybrid plan. Results with too
    few runs for a place count where no other result of their kind has all.
    """
    name = _board_name(board)
    pair = fastest_pair(board)
    if not pair:
        return visible(f"{name}: no result has a time.")
    if len(pair) == 1:
        (only,) = pair
        missing = "a hybrid plan" if _is_one(only) else _ONE
        return visible(f"{name}: {_side(only)} takes {_mean(only)} s; no result of {missing}.")
    one, other = pair
    decision = decide(other.official, one.official)
    first, second = _side(one), _side(other)
    times = f"{_mean(one)} s against {_mean(other)} s"
    p = p_value(decision.test.p_value) if decision.test else ""
    match decision.verdict:
        case "tie":
            text = f"{first} and {second} tie, {times}, {p}"
        case "undecided":
            text = f"{first} and {second}: undecided, {times}; a test takes two runs of each"
        case verdict:
            text = f"{first} is {verdict} than {second}, {times}, {p}"
    return visible(f"{name}: {text}.")


def fastest_pair(board: Board) -> tuple[JudgedResult, ...]:
    """Return the fastest result of a board, and its fastest opposite on such devices.

    The opposite of a hybrid plan is one process, and the other way round. Without one, the fastest
    result is alone; without a time, there is none.
    """
    timed = sorted((row.entry for row in board.rows if _is_timed(row.entry)), key=_order)
    if not timed:
        return ()
    first = timed[0]
    opposites = (
        each
        for each in timed
        if _is_one(each) != _is_one(first)
        and (each.score.org, each.official.accelerator)
        == (first.score.org, first.official.accelerator)
    )
    return (first, *[each for each in [next(opposites, None)] if each])


def next_commands(boards: Sequence[Board], page: Path) -> list[str]:
    """Return shell commands that explain the results of ``boards``, show ``page``, and go on."""
    pairs = [pair for board in boards if len(pair := fastest_pair(board)) > 1]
    pairs.sort(key=lambda pair: min(len(each.score.completed) for each in pair), reverse=True)
    tool = _from_here(Path(sys.executable).with_name("hybridperf"))
    opener = "open" if sys.platform == "darwin" else "xdg-open"
    commands = [
        shlex.join([tool, "compare", *(_from_here(each.result.package.folder) for each in pair)])
        for pair in pairs[:1]
    ]
    commands.append(shlex.join([opener, _from_here(page)]))
    commands.append(f"{shlex.quote(tool)} {_EIGHT}   # on 8 GPUs")
    return commands


def _is_timed(entry: JudgedResult) -> bool:
    means = means_of(entry.official)
    return entry.standing in {"ranked", "provisional"} and means is not None and means.time_s > 0


def _order(entry: JudgedResult) -> tuple[bool, float]:
    """Return a sort key: results with places first, then by time, as on the board."""
    means = means_of(entry.official)
    return entry.standing != "ranked", means.time_s if means else math.inf


def _is_one(entry: JudgedResult) -> bool:
    return plan_ranks(entry.score.plan) == 1


def _side(entry: JudgedResult) -> str:
    plan = entry.score.plan or entry.score.system
    if _is_one(entry):
        plan = _ONE if entry.score.plan == "dp=1" else f"{_ONE} ({plan})"
    provisional = entry.standing if entry.standing == "provisional" else ""
    busy = f"busy machine in {runs}" if (runs := entry.score.busy_runs) else ""
    marks = ", ".join(filter(None, (provisional, busy)))
    return f"{plan} ({marks})" if marks else plan


def _mean(entry: JudgedResult) -> str:
    means = means_of(entry.official)
    return seconds(means.time_s if means else None)


def _board_name(board: Board) -> str:
    version = f"version {board.version}" if board.version not in {"", "1"} else ""
    division = f"{board.division} division" if board.division not in {"", "closed"} else ""
    return ", ".join(filter(None, (board.benchmark, version, division)))


def _from_here(path: Path) -> str:
    """Return a path relative to the working directory, where it lies below it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
