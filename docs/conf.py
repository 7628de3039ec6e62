"""How the documentation is built."""

project = "HybridPerf"
author = "The HybridPerf developers"
extensions = ["myst_parser"]
html_theme = "furo"
exclude_patterns = ["_build", "examples"]
myst_heading_anchors = 2  # pages link to sections of others


def setup(app):
    """Put the table of metrics where a page asks for it."""
    from hybridperf.report.tables import metrics_markdown

    def insert(_app, _name, source):
        source[0] = source[0].replace("<!-- metrics -->", metrics_markdown())

    app.connect("source-read", insert)
