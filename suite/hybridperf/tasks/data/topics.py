"""The help texts of Python's standard library, as characters; each version is an edition.

The text is the help on all topics, sorted by name and joined by line feeds. Its first 409,600
characters form 1,600 blocks of 256. Blocks 0, 20, 40, ... are held out, and each of their eight
windows of 32 characters is one evaluation sample. In window i, counted over all held-out blocks,
the characters at positions (i + 6 j) mod 32, for j from 0 to 4, are masked.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.tasks.data.samples import DataSource, Samples, Splits, check_sha256, refuse_data

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hybridperf.tasks.task import Data

__all__ = ["CHARACTERS", "MASK", "MASKED", "WINDOW", "Topics"]

MASK: Final = 0  #: code of a masked character
CHARACTERS: Final = 98  #: mask, any non-ASCII or control character, line feed, 95 of ASCII
WINDOW: Final = 32  #: characters per evaluation sample
MASKED: Final = 5  #: masked characters per window

_BLOCK, _BLOCKS, _STEP = 256, 1600, 6
_OTHER, _LINE_FEED, _FIRST = 1, 2, 3


class Topics(DataSource):
    """Blocks of text to train on, and masked windows to evaluate."""

    in_memory = True

    def files(self, data: Data) -> list[Path]:
        """Return the source file of the module with the texts, and its compiled files.

        Raises:
            UserError: exit status 4 if this Python does not have it.
        """
        spec = importlib.util.find_spec("pydoc_data")
        places = spec.submodule_search_locations if spec else None
        path = Path(places[0], "topics.py") if places else None
        if path is None or not path.exists():
            expected = "the module pydoc_data.topics of Python's standard library"
            raise refuse_data(data, expected, "none", "use a Python with its whole library")
        return [path, *sorted((path.parent / "__pycache__").glob(f"{path.stem}.*"))]

    def check(self, data: Data) -> str:
        """Return the SHA-256 of the text, which differs from version to version of Python.

        Raises:
            UserError: exit status 4 if text is missing or too short.
        """
        return check_sha256(data, self._text(data).encode())

    def read(self, data: Data) -> Splits:
        """Read training blocks [sample, 256], without labels, and masked windows [sample, 32].

        The labels of windows are the masked characters [sample, 5], in the order of position.

        Raises:
            UserError: as `check`.
        """
        import numpy as np

        text = self._text(data)
        check_sha256(data, text.encode())
        blocks = _encode(text).reshape(_BLOCKS, _BLOCK)
        held_out = np.arange(_BLOCKS) % 20 == 0
        windows = blocks[held_out].reshape(-1, WINDOW)
        rows = np.arange(len(windows))[:, None]
        places = np.sort((rows + _STEP * np.arange(MASKED)) % WINDOW)
        labels = windows[rows, places].astype(np.int64)
        windows[rows, places] = MASK
        train = blocks[~held_out]
        no_labels = np.zeros((len(train), 0), dtype=np.int64)
        return Splits(Samples(train, no_labels), Samples(windows, labels))

    def _text(self, data: Data) -> str:
        self.files(data)
        from pydoc_data.topics import topics

        text = "\n".join(topics[name] for name in sorted(topics))[: _BLOCKS * _BLOCK]
        if len(text) < _BLOCKS * _BLOCK:
            expected = f"at least {_BLOCKS * _BLOCK} characters in pydoc_data.topics"
            raise refuse_data(data, expected, str(len(text)), "use another version of Python")
        return text


def _encode(text: str) -> NDArray[np.uint8]:
    import numpy as np

    codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    ascii_codes = np.where((codes >= 32) & (codes < 127), codes - 32 + _FIRST, _OTHER)
    return np.where(codes == ord("\n"), _LINE_FEED, ascii_codes).astype(np.uint8)
