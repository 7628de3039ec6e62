"""Steps over links with a rate limit."""
