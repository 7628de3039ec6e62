"""Convergence of delayed and compressed methods."""
