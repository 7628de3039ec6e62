"""Start torchrun so that it ends with the harness: ``python -m suite.runs.launcher <arguments>``."""

from __future__ import annotations

import runpy

from suite.runs.parent import die_with_parent

__all__ = ["main"]


def main() -> None:
    """Become torchrun, which dies when the process that started it does."""
    die_with_parent()
    runpy.run_module("torch.distributed.run", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
