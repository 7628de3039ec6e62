"""The command line ``hybridperf``: parse arguments, execute one command, print its result."""

from hybridperf.cli.main import main

__all__ = ["main"]
