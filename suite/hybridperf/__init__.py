"""The harness of HybridPerf: runs, logs, rules, scores and reports; independent of any model."""

__version__ = "0.1.0"
