"""Write what ``hybridperf check`` says now over the messages that are kept.

``python -m tests.messages.rewrite``; then read every one that changed, as a submitter would.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.messages.case import GOLDEN, message_of, write_valid
from tests.messages.cases import CASES


def main() -> None:
    """Write a file for each case, and remove those of cases that are no more."""
    GOLDEN.mkdir(exist_ok=True)
    for path in set(GOLDEN.iterdir()) - {case.golden for case in CASES}:
        path.unlink()
    with tempfile.TemporaryDirectory() as folder:
        valid = Path(folder).resolve() / "valid"
        write_valid(valid)
        for case in CASES:
            case.golden.write_text(message_of(case, valid, valid.with_name(case.name)))


if __name__ == "__main__":
    main()
