"""The training engine: parallelizes a chain of units under a plan and trains it."""
