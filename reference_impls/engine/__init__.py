"""Hybrid-parallel training of a chain: one idea a file."""
