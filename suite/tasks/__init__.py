"""What is measured: one TOML file a task, its loader, and its data behind a gate."""
