"""Describe machines, filter private data, and examine the requirements of a run."""
