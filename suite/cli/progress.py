"""Tell how a series of runs goes: a bar with the time left on a terminal, a line a run anywhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

if TYPE_CHECKING:
    from types import TracebackType

    from suite.runs.attempt import Sealed
    from suite.runs.supervise import Progress as RunProgress
    from suite.tasks.task import Task

__all__ = ["Narrator", "expected_batches"]


def expected_batches(task: Task) -> int:
    """Return how many global batches a run of ``task`` will take, by its reference runs."""
    samples = task.reference.samples_to_target if task.reference else ()
    if samples:
        return round(sum(samples) / len(samples)) // task.training.global_batch_size
    return round(task.limits.epochs * task.steps_per_epoch)


class Narrator:
    """Observe a series and tell it on standard error; silent where ``quiet``."""

    def __init__(self, *, quiet: bool) -> None:
        self._console = Console(file=sys.stderr, quiet=quiet, highlight=False)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._line: TaskID | None = None
        self._head = ""

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def begin(self, done: int, wanted: int, task: Task) -> None:
        """Begin a bar for the next attempt."""
        self._head = f"run {done + 1} of {wanted}"
        self._clear()
        self._line = self._bar.add_task(f"{self._head}: starting", total=expected_batches(task))

    def progress(self, progress: RunProgress) -> None:
        """Move the bar."""
        if self._line is None:
            return
        if not progress.running:
            self._bar.update(self._line, description=f"{self._head}: initialising (not timed)")
            return
        quality = (
            ""
            if progress.quality is None
            else f", {progress.quality:.2%} after epoch {progress.epoch}"
        )
        text = f"{self._head}: {progress.elapsed_s:.1f} s on the clock{quality}"
        self._bar.update(self._line, description=text, completed=progress.batches)

    def sealed(self, sealed: Sealed) -> None:
        """Say how the attempt ended."""
        self._clear()
        self._console.print(Text(f"  attempt {sealed.number}: {sealed.story}"), soft_wrap=True)

    def _clear(self) -> None:
        if self._line is not None:
            self._bar.remove_task(self._line)
            self._line = None
