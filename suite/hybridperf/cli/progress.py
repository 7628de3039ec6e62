"""The progress of a set of runs: a bar on a terminal, and a line for each finished run."""

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

    from hybridperf.run.attempt import Sealed
    from hybridperf.run.supervise import RunProgress
    from hybridperf.tasks.task import Task

__all__ = ["ProgressReporter", "expected_batches", "progress_bar"]


def progress_bar(console: Console) -> Progress:
    """Return a progress bar for ``console``, which shows nothing where that is no terminal."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def expected_batches(task: Task) -> int:
    """Estimate the global batches of a run of ``task``: the mean of its reference runs, if any.

    Without reference runs it is the number up to the task's limit of epochs.
    """
    samples = task.reference.samples_to_target if task.reference else ()
    if samples:
        return round(sum(samples) / len(samples)) // task.training.global_batch_size
    return round(task.limits.epochs * task.steps_per_epoch)


class ProgressReporter:
    """A `RunSetObserver` that reports on standard error, or nothing if ``quiet``."""

    def __init__(self, *, quiet: bool) -> None:
        self._console = Console(file=sys.stderr, quiet=quiet, highlight=False)
        self._bar = progress_bar(self._console)
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
        """Start a new bar for the next attempt."""
        self._head = f"run {done + 1} of {wanted}"
        self._clear()
        self._line = self._bar.add_task(f"{self._head}: starting", total=expected_batches(task))

    def progress(self, progress: RunProgress) -> None:
        """Update the bar."""
        if self._line is None:
            return
        if not progress.running:
            self._bar.update(self._line, description=f"{self._head}: initialising (not timed)")
            return
        quality = (
            "" if progress.quality is None else f", {progress.quality:.2%} after {progress.trained}"
        )
        text = f"{self._head}: {progress.elapsed_s:.1f} s on the clock{quality}"
        self._bar.update(self._line, description=text, completed=progress.batches)

    def segment(self, attempt: int, story: str) -> None:
        """Print why the run has another segment, and where that begins."""
        self._console.print(Text(f"  attempt {attempt}: {story}"), soft_wrap=True)

    def sealed(self, sealed: Sealed) -> None:
        """Print how the attempt ended."""
        self._clear()
        self._console.print(Text(f"  attempt {sealed.number}: {sealed.story}"), soft_wrap=True)

    def _clear(self) -> None:
        if self._line is not None:
            self._bar.remove_task(self._line)
            self._line = None
