"""The harness of HybridPerf: runs, logs, rules, scores and reports; independent of any model."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hybridperf.report.frames import read_curves, read_results, read_runs

__version__ = "0.1.0"
__all__ = ["read_curves", "read_results", "read_runs"]


def __getattr__(name: str) -> object:
    """Import what reads data frames when it is named, since it imports NumPy."""
    if name not in __all__:
        raise AttributeError(f"module 'hybridperf' has no attribute {name!r}")
    from hybridperf.report import frames

    return getattr(frames, name)
