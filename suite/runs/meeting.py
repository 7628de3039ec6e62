"""Where nodes speak to each other: a folder beside the results, on storage that they share.

Each node writes one file and reads the others'. Node 0 names the turns: ``prepare`` a run, ``go``,
``end`` it; the others answer ``ready`` and ``ended``. They come as ``joined`` and go as ``left``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from suite.refusal import Refusal
from suite.runs.atomic import canonical_json, write_atomically
from suite.tasks.schema import build

if TYPE_CHECKING:
    from pathlib import Path

    from suite.runs.nodes import Nodes

__all__ = ["AGAIN", "POLL_S", "Answer", "Call", "Meeting", "meeting_of"]

POLL_S: Final = 0.2  #: between looks at what others say: they may be many, and storage far
AGAIN: Final = "give the same command again on every node to go on"
_LEADER: Final = 0
Status = Literal[0, 1, 2, 3, 4, 5]  # the values of ExitCode


@dataclass(frozen=True, slots=True)
class Call:
    """What node 0 says."""

    series: str  #: a mark that no other series has
    turn: int = 0  #: runs called so far
    stage: Literal["gather", "prepare", "go", "end"] = "gather"
    run: str = ""  #: where the order of the run stands, from the folder of the submission
    status: Status | None = None  #: exit status, once the series is over
    reason: str = ""  #: why it is over, where it was refused


@dataclass(frozen=True, slots=True)
class Answer:
    """What another node says."""

    series: str
    configuration: dict[str, object] = field(default_factory=dict)
    hardware: dict[str, object] = field(default_factory=dict)
    turn: int = 0
    stage: Literal["joined", "ready", "ended", "left"] = "joined"
    reason: str = ""  #: why its ranks failed, or why it left
    status: Status = 0  #: with which it left


Words = TypeVar("Words", Call, Answer)


@dataclass(frozen=True, slots=True)
class Meeting:
    """The folder in which the nodes of one rendezvous speak."""

    folder: Path

    def say(self, rank: int, words: Call | Answer) -> None:
        """Say ``words`` as the node ``rank``; they replace what it said before."""
        write_atomically(self._words(rank), canonical_json(dataclasses.asdict(words)))

    def call(self) -> Call | None:
        """Return what node 0 says; None where that cannot be read now."""
        return self._heard(_LEADER, Call)

    def answer(self, rank: int) -> Answer | None:
        """Return what another node says; None where that cannot be read now."""
        return self._heard(rank, Answer)

    def life(self, rank: int) -> Path:
        """Return the file of a node's heartbeat."""
        return self.folder / f"life_{rank}"

    def lock(self, rank: int) -> Path:
        """Return the file that the one process locks which is the node ``rank``."""
        return self.folder / f".lock_{rank}"

    def forget(self, rank: int) -> None:
        """Leave no file of the node ``rank``, nor the folder if nobody else is there."""
        with contextlib.suppress(OSError):
            for path in (self._words(rank), self.life(rank), self.lock(rank)):
                path.unlink(missing_ok=True)
            self.folder.rmdir()

    def _words(self, rank: int) -> Path:
        return self.folder / f"node_{rank}.json"

    def _heard(self, rank: int, cls: type[Words]) -> Words | None:
        path = self._words(rank)
        with contextlib.suppress(OSError, ValueError, Refusal):
            return build(cls, json.loads(path.read_text(encoding="utf-8")), path=str(path))
        return None


def meeting_of(nodes: Nodes, out: Path) -> Meeting:
    """Return where nodes speak that write to ``out``: those of one rendezvous meet.

    Not in the result's folder: its name says what a machine is, and the nodes might differ.
    """
    place = nodes.rendezvous.replace(":", "_")
    return Meeting(out.absolute() / f".nodes_{place}")
