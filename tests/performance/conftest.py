"""Show what each benchmark found, below the table of its own times."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the extra information, which pytest-benchmark writes only to its JSON files."""
    for benchmark in config._benchmarksession.benchmarks:  # type: ignore[attr-defined]  # its plugin's
        if benchmark.extra_info:
            terminalreporter.section(benchmark.name, sep="-")
            for name, value in benchmark.extra_info.items():
                terminalreporter.write_line(f"{name}: {value}")
