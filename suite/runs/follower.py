"""The other nodes' side of a series: they take part in the runs that node 0 calls."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from typing import TYPE_CHECKING, Final

from suite.findings import Finding
from suite.refusal import ExitCode, Refusal
from suite.runs.ending import explain_crash, read_output
from suite.runs.folder import environment_refusal, only_holder
from suite.runs.heartbeat import Listener, heartbeat
from suite.runs.launch import launch
from suite.runs.meeting import AGAIN, POLL_S, Answer, Call, meeting_of
from suite.runs.order import check_order
from suite.runs.processes import end_processes
from suite.runs.sameness import agreed, hardware
from suite.runs.spec import RunSpec
from suite.runs.supervise import StopRequest, stop_on_signals
from suite.systems.describe import describe
from suite.tasks.data import drop_from_page_cache

if TYPE_CHECKING:
    from pathlib import Path

    from suite.runs.order import Order

__all__ = ["follow"]

_DELIVERY_S: Final = 30  #: for node 0 to come and hear why this node does not take part
_SUCCESSION_S: Final = 30  #: for a process of an earlier series to see that its node 0 is gone
_FLUSH_S: Final = 1.0


def follow(order: Order) -> ExitCode:
    """Take part in the runs of node 0's series; return the exit status that it ends with.

    Raises:
        Refusal: as node 0 does, exit status 4 where node 0 does not come or is lost, or where this
            node is taken, 5 when interrupted.
    """
    meeting, rank = meeting_of(order.nodes, order.out), order.nodes.rank
    taken = only_holder(meeting.lock(rank), f"no other node {rank} here", _SUCCESSION_S)
    with stop_on_signals() as stop, taken:
        try:
            with heartbeat(meeting.life(rank)):
                return _Follower(order, stop).follow()
        finally:
            if meeting.call() is None:  # there is no node 0, which would clear it all away
                meeting.forget(rank)


class _Follower:
    def __init__(self, order: Order, stop: StopRequest) -> None:
        self._order, self._stop, self._task = order, stop, order.task()
        self._rank = order.nodes.rank
        self._meeting = meeting_of(order.nodes, order.out)
        self._leader = Listener(self._meeting.life(0))
        self._answer = Answer(series="")

    def follow(self) -> ExitCode:
        """Join the series of node 0, and go through it."""
        problem = self._problem()
        call = self._join(_DELIVERY_S if problem else self._task.limits.initialisation_s, problem)
        try:
            if problem is not None:
                raise problem
            call = self._follow(call)
        except Refusal as refusal:
            self._leave(str(refusal), refusal.exit_code)
            raise
        except OSError as error:
            failed = environment_refusal(error, self._order.out)
            self._leave(str(failed), failed.exit_code)
            raise failed from error
        self._leave("", ExitCode.OK)
        if call.reason:
            raise Refusal(f"node 0: {call.reason}", ExitCode(call.status or ExitCode.OK))
        return ExitCode(call.status or ExitCode.OK)

    def _follow(self, call: Call) -> Call:
        """Take part in the runs that are called; return the call that ends the series."""
        facts = {"configuration": agreed(self._order, self._task), "hardware": hardware(describe())}
        self._say(**facts)
        while call.status is None:
            if call.stage == "prepare" and call.turn > self._answer.turn:
                drop_from_page_cache(self._task.data)
                self._say(turn=call.turn, stage="ready", reason="")
            elif call.stage == "go" and self._is_ready_for(call):
                self._take_part(call)
            time.sleep(POLL_S)
            call = self._heard(call)
        return call

    def _problem(self) -> Refusal | None:
        """Return why this node cannot take part."""
        try:
            findings = check_order(self._order)
        except Refusal as refusal:
            return refusal
        return Refusal(findings[0], ExitCode.USAGE) if findings else None

    def _join(self, patience_s: float, problem: Refusal | None) -> Call:
        """Wait for a series whose node 0 lives: what an earlier one left behind says nothing."""
        deadline_s = time.monotonic() + patience_s
        while True:
            self._leader.look()
            call = self._meeting.call()
            if call is not None and call.status is None and self._leader.alive:
                self._answer = Answer(series=call.series)
                return call
            if self._stop.signal is not None:
                reason = f"stopped by {self._stop.signal.name} while waiting for node 0"
                raise Refusal(f"{reason}; {AGAIN}.", ExitCode.INTERRUPTED)
            if time.monotonic() > deadline_s:
                raise problem or Refusal(_absence(self._order, patience_s), ExitCode.ENVIRONMENT)
            time.sleep(POLL_S)

    def _heard(self, last: Call) -> Call:
        """Return what node 0 says now.

        Raises:
            Refusal: where it is lost, or this node is told to stop; node 0 hears of that first.
        """
        if self._stop.signal is not None:
            reason = f"stopped by {self._stop.signal.name}"
            self._leave(reason, ExitCode.INTERRUPTED)
            raise Refusal(f"{reason} on node {self._rank}; {AGAIN}.", ExitCode.INTERRUPTED)
        self._leader.look()
        call = self._meeting.call() or last
        if self._leader.lost or call.series != last.series:
            raise Refusal(f"node 0 was lost; {AGAIN}.", ExitCode.ENVIRONMENT)
        return call

    def _is_ready_for(self, call: Call) -> bool:
        return (self._answer.turn, self._answer.stage) == (call.turn, "ready")

    def _take_part(self, call: Call) -> None:
        """Run this node's ranks until they end, or node 0 ends the run; none is left either way."""
        spec = RunSpec.read(self._order.out.absolute() / call.run / "run.json")
        process, now, flushed_s = launch(spec, self._rank), call, 0.0
        try:
            while process.poll() is None and (now.turn, now.stage) == (call.turn, "go"):
                if now.status is not None:
                    break
                if time.monotonic() - flushed_s > _FLUSH_S:
                    _flush(spec.pulse)
                    flushed_s = time.monotonic()
                time.sleep(POLL_S)
                now = self._heard(now)
            status = process.poll()
        finally:
            end_processes(spec.path, self._rank)
            process.wait()
        reason = ""
        if status:
            reason = explain_crash(read_output(spec.output_of(self._rank)), status)
        self._say(stage="ended", reason=reason)

    def _leave(self, reason: str, status: int) -> None:
        """Say why this node leaves, before its ranks end; the first reason stands."""
        if self._answer.stage != "left":
            self._say(stage="left", reason=reason, status=status)

    def _say(self, **changes: object) -> None:
        self._answer = dataclasses.replace(self._answer, **changes)  # type: ignore[arg-type]  # of its fields
        with contextlib.suppress(OSError):  # node 0 misses an answer, and says so
            self._meeting.say(self._rank, self._answer)


def _flush(path: Path) -> None:
    """Let other machines see what the ranks noted: network storage may keep it back for long."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _absence(order: Order, patience_s: float) -> Finding:
    return Finding(
        "nodes.gather",
        f"node 0 within {patience_s:g} s",
        "no sign of it",
        "give the same command on node 0 too, with --out on storage that all nodes share",
        path=str(order.out),
    )
