"""Run a module so that it ends with who started it: ``python -m suite.runs.launcher MODULE ...``.

torchrun, every rank and the predictor start through it, so that a run outlives its harness by no
more than a moment, however early that ends and whatever the trainer does.
"""

from __future__ import annotations

import runpy
import sys

from suite.runs.parent import die_with_parent

__all__ = ["main"]


def main() -> None:
    """Become the module that the first argument names; the others are its own."""
    die_with_parent()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
