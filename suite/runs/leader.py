"""Node 0's side of a series on several nodes: gathers the others, and has them take part."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from suite.findings import Finding
from suite.refusal import ExitCode, Refusal
from suite.runs.ending import Outcome, read_output
from suite.runs.folder import only_holder
from suite.runs.heartbeat import Listener, heartbeat
from suite.runs.meeting import AGAIN, POLL_S, Answer, Call, meeting_of
from suite.runs.sameness import agreed, difference, hardware

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from suite.runs.nodes import Nodes
    from suite.runs.order import Order
    from suite.runs.spec import RunSpec
    from suite.runs.supervise import StopRequest
    from suite.tasks.task import Task

__all__ = ["Leader", "leading"]

_ENDING_S: Final = 15  #: for others to end their ranks, each of which is asked first
_FAREWELL_S: Final = 10  #: for others to hear that the series is over


class Leader:
    """What node 0 does about the others; where there are none, nothing."""

    def __init__(self, nodes: Nodes, out: Path) -> None:
        self.status = ExitCode.OK  #: what the others exit with; set as the series ends
        self._out, self._nodes = out.absolute(), nodes.others
        self._meeting = meeting_of(nodes, out)
        self._lives = {node: Listener(self._meeting.life(node)) for node in self._nodes}
        self._answers: dict[int, Answer] = {}
        self._looked_s = 0.0
        self._call = Call(series=secrets.token_hex(8))

    def gather(
        self, order: Order, task: Task, description: Mapping[str, object], stop: StopRequest
    ) -> None:
        """Wait for all nodes, and make sure that they are of one kind and have one order.

        Raises:
            Refusal: exit status 2 where they differ, 4 where one does not come, 5 when interrupted;
                as the node says where one cannot take part.
        """
        self._await(lambda _: True, task, stop)
        ours = (agreed(order, task), hardware(description))
        for node, answer in sorted(self._answers.items()):
            theirs = (answer.configuration, answer.hardware)
            if found := difference(ours, theirs, node):
                raise Refusal(found, ExitCode.USAGE)

    def prepare(self, task: Task, stop: StopRequest) -> None:
        """Have nothing of earlier runs be left on other nodes: no process, no cached data.

        Raises:
            Refusal: as `gather`.
        """
        self._say(turn=self._call.turn + 1, stage="prepare", run="")
        self._await(lambda answer: self._says(answer, "ready"), task, stop)

    def go(self, spec: RunSpec) -> None:
        """Have the other nodes start their ranks."""
        if not self._nodes:
            return
        run = Path(spec.folder).relative_to(self._out)
        self._say(stage="go", run=run.as_posix())

    def trouble(self) -> tuple[Outcome, str] | None:
        """Return how and why the run ends, where another node cannot go on."""
        self._look()
        for node in self._nodes:
            answer = self._answers.get(node)
            if answer is not None and answer.stage == "left":
                if ExitCode(answer.status) is ExitCode.INTERRUPTED:
                    return Outcome.INTERRUPTED, f"{answer.reason} on node {node}"
                return Outcome.CRASHED, f"node {node}: {answer.reason.rstrip('.')}"
            ended = self._says(answer, "ended")
            if answer is not None and ended and answer.reason:
                return Outcome.CRASHED, answer.reason
            unheard = self._call.stage == "end" and not ended
            if unheard or self._lives[node].lost or not self._says(answer, "ready", "ended"):
                return Outcome.CRASHED, f"node {node} was lost"
        return None

    def call_off(self) -> None:
        """Have the other nodes end what is left of their ranks."""
        self._say(stage="end")

    def collect(self, spec: RunSpec) -> None:
        """Wait until they have, and add what their ranks printed to what ours did."""
        deadline_s = time.monotonic() + _ENDING_S
        while any(self._works(node) for node in self._nodes) and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
            self._look()
        for node in self._nodes:
            if (path := spec.output_of(node)).exists():
                with spec.output.open("a", encoding="utf-8") as output:
                    output.write(f"\n--- node {node} ---\n{read_output(path)}")

    def begin(self) -> None:
        """Tell whoever waits that there is a series."""
        self._say()

    def dismiss(self, status: int, reason: str = "") -> None:
        """Tell the others that the series is over, and leave no file of the meeting."""
        with contextlib.suppress(OSError):  # why the series ended matters more
            self._say(status=status, reason=reason)
        deadline_s = time.monotonic() + _FAREWELL_S
        while any(self._listens(node) for node in self._nodes) and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
            self._look()
        shutil.rmtree(self._meeting.folder, ignore_errors=True)

    def _works(self, node: int) -> bool:
        answer = self._answers.get(node)
        return self._says(answer, "ready") and not self._lives[node].lost

    def _listens(self, node: int) -> bool:
        answer = self._answers.get(node)
        return answer is not None and answer.stage != "left" and not self._lives[node].lost

    def _says(self, answer: Answer | None, *stages: str) -> bool:
        return answer is not None and answer.turn == self._call.turn and answer.stage in stages

    def _say(self, **changes: object) -> None:
        self._call = dataclasses.replace(self._call, **changes)  # type: ignore[arg-type]  # of its fields
        if self._nodes:
            self._meeting.say(0, self._call)

    def _look(self) -> None:
        if time.monotonic() - self._looked_s < POLL_S:
            return
        for node in self._nodes:
            answer = self._meeting.answer(node)
            if answer is not None and answer.series == self._call.series:
                self._answers[node] = answer
                self._lives[node].look()
        self._looked_s = time.monotonic()

    def _await(self, holds: Callable[[Answer], bool], task: Task, stop: StopRequest) -> None:
        """Wait until every node is there, and what it says ``holds``."""
        limit_s = task.limits.initialisation_s
        deadline_s = time.monotonic() + limit_s
        while True:
            self._look()
            for node, answer in self._answers.items():
                if answer.stage == "left" and ExitCode(answer.status) is ExitCode.INTERRUPTED:
                    raise Refusal(f"{answer.reason} on node {node}; {AGAIN}.", ExitCode.INTERRUPTED)
                if answer.stage == "left":
                    raise Refusal(f"node {node}: {answer.reason}", ExitCode(answer.status))
                if self._lives[node].lost:
                    raise Refusal(f"node {node} was lost; {AGAIN}.", ExitCode.ENVIRONMENT)
            there = [node for node, answer in self._answers.items() if holds(answer)]
            absent = [node for node in self._nodes if node not in there]
            if not absent:
                return
            if stop.signal is not None:
                reason = f"stopped by {stop.signal.name} while waiting for node {absent[0]}"
                raise Refusal(f"{reason}; {AGAIN}.", ExitCode.INTERRUPTED)
            if time.monotonic() > deadline_s:
                raise Refusal(_absence(len(self._nodes) + 1, absent, limit_s), ExitCode.ENVIRONMENT)
            time.sleep(POLL_S)


@contextlib.contextmanager
def leading(order: Order) -> Iterator[Leader]:
    """Lead the nodes of ``order`` through a series; however it ends, they hear of it.

    Raises:
        Refusal: exit status 4 where another process is node 0 of a series at the same rendezvous.
    """
    leader = Leader(order.nodes, order.out)
    if order.nodes.count == 1:
        yield leader
        return
    meeting = meeting_of(order.nodes, order.out)
    taken = only_holder(meeting.lock(0), "no other series at this rendezvous")
    with taken, heartbeat(meeting.life(0)):
        leader.begin()
        try:
            yield leader
        except Refusal as refusal:
            leader.dismiss(refusal.exit_code, str(refusal))
            raise
        except BaseException as error:
            failed = isinstance(error, OSError)
            leader.dismiss(ExitCode.ENVIRONMENT if failed else ExitCode.INTERRUPTED, "it was ended")
            raise
        leader.dismiss(leader.status)


def _absence(count: int, absent: list[int], limit_s: float) -> Finding:
    missing = ", ".join(map(str, absent[:8])) + (", ..." if absent[8:] else "")
    return Finding(
        "nodes.gather",
        f"{count} nodes within {limit_s:g} s",
        f"no answer from node {missing}",
        "give the same command on every node, with its own --node-rank, and --out on storage that "
        "all share",
    )
