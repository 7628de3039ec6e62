"""Projected and measured steps of two ranks."""
