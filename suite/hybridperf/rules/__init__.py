"""Rules for valid results: one function per rule, with parameters from a ruleset."""
