"""Projected scaling of the full-size models."""
