"""How the documentation is built."""

project = "HybridPerf"
author = "The HybridPerf developers"
extensions = ["myst_parser"]
html_theme = "furo"
exclude_patterns = ["_build"]
myst_heading_anchors = 2  # pages link to sections of others
