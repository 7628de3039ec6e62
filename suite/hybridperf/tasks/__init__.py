"""Tasks: one TOML file each, the code that reads them, and their data."""
