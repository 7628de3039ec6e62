"""A package of the user's own, whose name is that of a folder of ours."""

ANSWER = 42
