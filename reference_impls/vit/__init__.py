"""The vision transformer family."""
