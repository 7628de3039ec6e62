"""The handwritten digits distributed with scikit-learn."""

from __future__ import annotations

import gzip
import importlib.util
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from hybridperf.errors import ExitCode, UserError
from hybridperf.tasks.data.samples import DataSource, Samples, Splits, check_sha256, refuse_data

if TYPE_CHECKING:
    from hybridperf.tasks.task import Data

__all__ = ["Digits"]


class Digits(DataSource):
    """Images of 8 x 8 pixels; in each class, images 0, 3, 6, ... in file order are held out."""

    in_memory = True

    def files(self, data: Data) -> list[Path]:  # noqa: ARG002 - there is one file
        """Return the data file, found without importing scikit-learn, which takes seconds.

        Raises:
            UserError: exit status 4 if scikit-learn is not installed.
        """
        spec = importlib.util.find_spec("sklearn")
        if spec is None or not spec.submodule_search_locations:
            raise UserError.of(
                "data.missing",
                "the package scikit-learn, which carries the handwritten digits",
                "no such package",
                "install it with 'pip install scikit-learn'",
                exit_code=ExitCode.ENVIRONMENT,
            )
        return [Path(spec.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")]

    def check(self, data: Data) -> str:
        """Return the SHA-256 of the decompressed file.

        Raises:
            UserError: exit status 4 if it cannot be read or has another checksum.
        """
        return check_sha256(data, self._content(data))

    def read(self, data: Data) -> Splits:
        """Read the images, uint8 [sample, 8, 8], and their classes [sample].

        Raises:
            UserError: as `check`.
        """
        import numpy as np

        content = self._content(data)
        check_sha256(data, content)
        table = np.loadtxt(content.decode().splitlines(), delimiter=",", dtype=np.int64)
        labels = table[:, -1]
        # The source has values from 0 to 16.
        images = np.rint(table[:, :-1] * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8)
        held_out = np.zeros(len(labels), dtype=bool)
        for label in set(labels.tolist()):  # np.unique imports numpy.ma
            held_out[np.flatnonzero(labels == label)[::3]] = True
        return Splits(
            Samples(images[~held_out], labels[~held_out]),
            Samples(images[held_out], labels[held_out]),
        )

    def _content(self, data: Data) -> bytes:
        (path,) = self.files(data)
        try:
            return gzip.decompress(path.read_bytes())
        except (OSError, EOFError, zlib.error) as error:
            raise refuse_data(data, "a readable gzip file", str(error)) from error
