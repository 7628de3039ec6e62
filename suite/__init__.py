"""The harness of HybridPerf: rules, logs, clocks and numbers; knows no model, imports no torch."""

__version__ = "0.1.0"
