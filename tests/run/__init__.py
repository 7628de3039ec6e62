"""Tests of runs, and of what may go wrong in them."""
