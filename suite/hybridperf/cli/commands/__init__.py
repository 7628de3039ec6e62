"""One module per command, each with ``EXAMPLES``, ``add_arguments`` and ``execute``."""
