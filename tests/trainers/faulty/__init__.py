"""The nearest neighbour with the one fault that the environment names, or with none."""
