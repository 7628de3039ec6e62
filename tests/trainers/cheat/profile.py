"""Measure nothing, and try what `units` tries."""

from __future__ import annotations

from tests.trainers.cheat.units import main

if __name__ == "__main__":
    main()
