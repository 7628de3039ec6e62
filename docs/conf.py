"""How the documentation is built."""

project = "HybridPerf"
author = "The HybridPerf developers"
extensions = ["myst_parser"]
html_theme = "furo"
exclude_patterns = ["_build"]
myst_heading_anchors = 2  # pages link to sections of others


def setup(app):
    """Put the tables of columns where a page asks for them."""
    from hybridperf.report.frames import CURVE_COLUMNS, RUN_COLUMNS, columns_markdown
    from hybridperf.report.tables import metrics_markdown

    tables = {
        "metrics": metrics_markdown(),
        "columns of runs": columns_markdown(RUN_COLUMNS),
        "columns of evaluations": columns_markdown(CURVE_COLUMNS),
    }

    def insert(_app, _name, source):
        for name, table in tables.items():
            source[0] = source[0].replace(f"<!-- {name} -->", table)

    app.connect("source-read", insert)
