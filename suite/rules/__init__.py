"""What is valid: rules, each one function, applied as a pinned ruleset says."""
