"""The reference trainers: launched by the harness as a stranger's would be."""
