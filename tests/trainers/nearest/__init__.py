"""Learns by memorising: nearest neighbour on the pixels, honest and over in a second."""
