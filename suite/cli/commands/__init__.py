"""One module a command, each with ``execute(options) -> exit status``."""
