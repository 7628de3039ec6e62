"""The nearest neighbour, with the one fault that the environment names; honest where it names none."""
