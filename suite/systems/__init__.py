"""Machines: what may be published about one, what it can run on, and what it lacks."""
