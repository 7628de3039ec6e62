"""The nodes of a run: how many there are, which one this is, and where their ranks meet."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final

from suite.findings import Finding
from suite.refusal import ExitCode, Refusal

__all__ = ["Nodes"]

_SLURM_RANK: Final = "SLURM_NODEID"
_HOST: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_MOST_PORTS: Final = 2**16


@dataclass(frozen=True, slots=True)
class Nodes:
    """One machine among those that train together; node 0 leads, the others follow it."""

    count: int = 1
    rank: int = 0  #: of this machine, counted from 0
    rendezvous: str = ""  #: HOST:PORT on node 0; empty where there is one node

    @classmethod
    def named(cls, count: int | None, rank: str | None, rendezvous: str | None) -> Nodes:
        """Return what ``--nodes``, ``--node-rank`` and ``--rendezvous`` say; None is not given.

        Raises:
            Refusal: exit status 2 where they do not go together.
        """
        if count is None:
            given = {"--node-rank": rank, "--rendezvous": rendezvous}
            for option, value in given.items():
                if value is not None:
                    raise _refuse("--nodes N", f"{option} alone", f"add --nodes or drop {option}")
            return cls()
        number = 0 if count == 1 and rank is None else _rank(count, rank)
        return cls(count, number, "" if count == 1 else _rendezvous(rendezvous))

    @property
    def others(self) -> range:
        """Return the nodes that follow node 0."""
        return range(1, self.count)


def _rank(count: int, given: str | None) -> int:
    text = os.environ.get(_SLURM_RANK) if given is None else given
    if text is None:
        remedy = "name this node with --node-rank K"
        raise _refuse(f"--node-rank or the variable {_SLURM_RANK}", "neither", remedy)
    if not (text.isascii() and text.isdigit() and int(text) < count):
        option = _SLURM_RANK if given is None else "--node-rank"
        remedy = "number the nodes from 0, each once"
        raise _refuse(f"a {option} from 0 to {count - 1}", repr(text), remedy)
    return int(text)


def _rendezvous(text: str | None) -> str:
    expected, remedy = "--rendezvous HOST:PORT", "name node 0 and a port that is free there"
    if text is None:
        raise _refuse(f"{expected} with more than one node", "none", remedy)
    host, _, port = text.rpartition(":")
    if not (_HOST.fullmatch(host) and port.isascii() and port.isdigit()):
        raise _refuse(expected, repr(text), remedy)
    if not 0 < int(port) < _MOST_PORTS:
        raise _refuse("a port from 1 to 65535", repr(port), remedy)
    return text


def _refuse(expected: str, found: str, remedy: str) -> Refusal:
    return Refusal(Finding("order.nodes", expected, found, remedy), ExitCode.USAGE)
