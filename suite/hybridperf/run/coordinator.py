"""Node 0's side of a run on several nodes: compare the nodes, and start and stop their ranks."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import time
from typing import TYPE_CHECKING, Final

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding, visible
from hybridperf.run.consistency import (
    differences,
    first_difference,
    hardware,
    stated_by_node,
)
from hybridperf.run.ending import RunOutcome as Outcome
from hybridperf.run.files import write_atomically
from hybridperf.run.local_ranks import reserve_port
from hybridperf.run.nodes import AGAIN, MISSED_LOOKS, POLL_S, Answer, Call, NodeStore

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from hybridperf.log.package import Package
    from hybridperf.run.ending import StopRequest
    from hybridperf.run.nodes import Nodes
    from hybridperf.run.request import RunRequest
    from hybridperf.run.spec import RunSpec
    from hybridperf.tasks.task import Task

__all__ = ["Coordinator", "coordinating"]

_STOPPING_S: Final = 15  #: time for other nodes to end their ranks, SIGTERM before SIGKILL
_FAREWELL_S: Final = 10  #: time for other nodes to read that the command has ended
_SHARED: Final = ".nodes"  #: file by which nodes verify that they share a folder


class Coordinator:
    """Coordinate the other nodes from node 0; every method is a no-op if there is one node."""

    def __init__(self, nodes: Nodes, out: Path, store: NodeStore | None = None) -> None:
        self.status = ExitCode.OK  #: exit status of the other nodes once this one ends
        self.differences: list[dict[str, object]] = []  #: [node]: from node 0's description
        self._out, self._nodes = out.absolute(), nodes
        self._store = store
        self._others = nodes.others if store is not None else range(0)
        self._answers: dict[int, Answer] = {}
        self._missed = dict.fromkeys(self._others, 0)
        self._looked_s = 0.0
        self._call = Call()
        self._reserved: socket.socket | None = None

    def preflight(
        self,
        request: RunRequest,
        task: Task,
        description: Mapping[str, object],
        stop: StopRequest,
    ) -> None:
        """Wait for all nodes, and check that request, code, data and hardware are the same.

        Raises:
            UserError: exit status 2 if they differ, 4 if a node does not join in time, 5 if
                interrupted; a node's own exit status if it cannot take part.
        """
        if not self._others:
            return
        self._await(lambda answer: bool(answer.configuration), task, stop)
        ours = (stated_by_node(request, task), hardware(description))
        for node, answer in sorted(self._answers.items()):
            theirs = (answer.configuration, answer.hardware)
            if found := first_difference(ours, theirs, node):
                raise UserError(found, ExitCode.USAGE)
            self.differences.append(differences(description, answer.description))

    def prepare(self, package: Package, task: Task, stop: StopRequest) -> None:
        """Let every node drop cached data and check that it sees the shared folder.

        Raises:
            UserError: as `preflight`.
        """
        if not self._others:
            return
        shared, token = package.folder / _SHARED, secrets.token_hex(8)
        write_atomically(shared, token.encode())
        try:
            where = shared.relative_to(self._out).as_posix()
            turn = self._call.turn + 1
            self._say(turn=turn, stage="prepare", run="", shared=where, token=token)
            self._await(lambda answer: self._says(answer, "ready"), task, stop)
        finally:
            shared.unlink(missing_ok=True)

    def rendezvous(self) -> str:
        """Return HOST:PORT for the ranks of the next run, with a free port of node 0.

        The port stays reserved until the next run, or the end.
        """
        if not self._others:
            return ""
        self.close()
        self._reserved = reserve_port("")
        return f"{self._nodes.host}:{self._reserved.getsockname()[1]}"

    def close(self) -> None:
        """Give the port of the last run back."""
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None

    def start(self, spec: RunSpec) -> None:
        """Let the other nodes start their ranks of the run ``spec``."""
        self._say(stage="start", run=spec.path.parent.relative_to(self._out).as_posix())

    def batches(self, ranks: int) -> list[tuple[int, ...]]:
        """Return the batches begun by each of ``ranks`` ranks, as other nodes last reported."""
        self._look()
        return [
            answer.batches
            for answer in self._answers.values()
            if answer.turn == self._call.turn and len(answer.batches) == ranks
        ]

    def trouble(self) -> tuple[Outcome, str] | None:
        """Return outcome and reason if another node cannot continue, else None."""
        self._look()
        for node in self._others:
            answer = self._answers.get(node)
            if answer is not None and answer.stage == "left":
                if ExitCode(answer.status) is ExitCode.INTERRUPTED:
                    return Outcome.INTERRUPTED, f"{visible(answer.reason)} on node {node}"
                return Outcome.CRASHED, f"node {node}: {visible(answer.reason).rstrip('.')}"
            ended = self._says(answer, "ended")
            if answer is not None and ended and answer.reason:
                return Outcome.CRASHED, visible(answer.reason)
            unheard = self._call.stage == "stop" and not ended
            if unheard or self._lost(node) or not self._says(answer, "ready", "ended"):
                return Outcome.CRASHED, f"node {node} was lost"
        return None

    def call_off(self) -> None:
        """Let the other nodes end their remaining ranks."""
        self._say(stage="stop")

    def collect(self, spec: RunSpec) -> None:
        """Wait until the other nodes have ended their ranks, and append their output to the run's.

        Waits 15 s at most.
        """
        self._await_until(
            lambda node: self._lost(node) or not self._says(self._answers.get(node), "ready"),
            _STOPPING_S,
        )
        for node, answer in sorted(self._answers.items()):
            if self._says(answer, "ended") and answer.output:
                with spec.output.open("a", encoding="utf-8") as output:
                    output.write(f"\n--- node {node} ---\n{answer.output}")

    def dismiss(self, status: int, reason: str = "") -> None:
        """Tell the other nodes to exit with ``status``, and wait until they have left.

        ``reason`` is the error message if the command failed. Waits 10 s at most.
        """
        self._say(status=status, reason=reason)
        joined = [node for node in self._others if node in self._answers]
        self._await_until(
            lambda node: (
                node not in joined or self._lost(node) or self._answers[node].stage == "left"
            ),
            _FAREWELL_S,
        )

    def _lost(self, node: int) -> bool:
        return self._missed[node] >= MISSED_LOOKS

    def _says(self, answer: Answer | None, *stages: str) -> bool:
        return answer is not None and answer.turn == self._call.turn and answer.stage in stages

    def _say(self, **changes: object) -> None:
        self._call = dataclasses.replace(self._call, **changes)  # type: ignore[arg-type]  # of its fields
        if self._store is not None:
            self._store.call(self._call)

    def _look(self) -> None:
        """Read the answers of the other nodes, at most once every ``POLL_S``."""
        if self._store is None or time.monotonic() - self._looked_s < POLL_S:
            return
        for node in self._others:
            before, answer = self._answers.get(node), self._store.current_answer(node)
            if answer is None:
                continue
            same = before is not None and before.beat == answer.beat
            self._missed[node] = self._missed[node] + 1 if same else 0
            self._answers[node] = answer
        self._looked_s = time.monotonic()

    def _await_until(self, done: Callable[[int], bool], patience_s: float) -> None:
        deadline_s = time.monotonic() + patience_s
        while not all(map(done, self._others)) and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
            self._look()

    def _await(self, holds: Callable[[Answer], bool], task: Task, stop: StopRequest) -> None:
        """Wait until every node has joined with an answer that ``holds``.

        Raises:
            UserError: as `preflight`.
        """
        limit_s = task.limits.initialisation_s
        deadline_s = time.monotonic() + limit_s
        while True:
            self._look()
            for node, answer in self._answers.items():
                self._require_present(node, answer)
            absent = [n for n in self._others if n not in self._answers]
            absent = absent or [n for n in self._others if not holds(self._answers[n])]
            if not absent:
                return
            if stop.signal is not None:
                reason = f"stopped by {stop.signal.name} while waiting for node {absent[0]}"
                raise UserError(f"{reason}; {AGAIN}.", ExitCode.INTERRUPTED)
            if time.monotonic() > deadline_s:
                finding = _absence(len(self._others) + 1, absent, limit_s)
                raise UserError(finding, ExitCode.ENVIRONMENT)
            time.sleep(POLL_S)

    def _require_present(self, node: int, answer: Answer) -> None:
        reason = visible(answer.reason)
        if answer.stage == "left" and ExitCode(answer.status) is ExitCode.INTERRUPTED:
            raise UserError(f"{reason} on node {node}; {AGAIN}.", ExitCode.INTERRUPTED)
        if answer.stage == "left":
            raise UserError(f"node {node}: {reason}", ExitCode(answer.status))
        if self._lost(node):
            raise UserError(f"node {node} was lost; {AGAIN}.", ExitCode.ENVIRONMENT)


@contextlib.contextmanager
def coordinating(request: RunRequest) -> Iterator[Coordinator]:
    """Coordinate the nodes of ``request`` as node 0, and dismiss them however the body ends.

    Raises:
        UserError: exit status 4 if the port of the rendezvous is not free.
    """
    if request.nodes.count == 1:
        yield Coordinator(request.nodes, request.out)
        return
    store = NodeStore.host(request.nodes)
    coordinator = Coordinator(request.nodes, request.out, store)
    try:
        with contextlib.closing(coordinator):
            yield coordinator
    except UserError as error:
        coordinator.dismiss(error.exit_code, str(error))
        raise
    except BaseException as error:
        failed = isinstance(error, OSError)
        status = ExitCode.ENVIRONMENT if failed else ExitCode.INTERRUPTED
        coordinator.dismiss(status, "it was ended")
        raise
    coordinator.dismiss(coordinator.status)


def _absence(count: int, absent: list[int], limit_s: float) -> Finding:
    missing = ", ".join(map(str, absent[:8])) + (", ..." if absent[8:] else "")
    return Finding(
        "nodes.gather",
        f"{count} nodes within {limit_s:g} s",
        f"no answer from node {missing}",
        "give the same command on every node, with its own --node-rank",
    )
