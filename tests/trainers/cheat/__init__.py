"""The nearest neighbour that also tries what it must not, and notes what became of each attempt."""
