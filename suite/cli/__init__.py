"""``hybridperf ...``: parses, calls one function a command, prints."""

from suite.cli.main import main

__all__ = ["main"]
