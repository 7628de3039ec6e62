"""CIFAR-10, read into memory from torchvision's files or from class folders of images."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

from hybridperf.tasks.data.pictures import Pictures
from hybridperf.tasks.data.samples import (
    DataSource,
    Samples,
    Splits,
    data_folder,
    listing_sha256,
    refuse_data,
)

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.tasks.data.samples import PrepareProgress
    from hybridperf.tasks.task import Data

__all__ = ["Cifar10"]

_UNPACKED: Final = "cifar-10-batches-py"
_SIZE_PX: Final = 32


class Cifar10(DataSource):
    """60,000 colour images of 32 x 32 pixels in ten classes, 10,000 of them held out."""

    in_memory = True

    def files(self, data: Data) -> list[Path]:
        """Return the files that contain the images.

        Raises:
            UserError: exit status 4 if there are none.
        """
        unpacked = data_folder(data) / _UNPACKED
        return sorted(unpacked.glob("*_batch*")) if unpacked.is_dir() else Pictures().files(data)

    def check(self, data: Data) -> str:
        """Return the SHA-256 of the names and sizes of the files.

        Raises:
            UserError: exit status 4, naming a file that is missing or empty.
        """
        folder = data_folder(data)
        if (folder / _UNPACKED).is_dir():
            return listing_sha256(folder, self.files(data))
        return Pictures().check(data)

    def verify(self, data: Data, progress: PrepareProgress) -> bool:
        """Decode every image in class folders as a check; return False if nothing remained to do.

        Raises:
            UserError: exit status 4, naming the first image that is damaged or of another size.
        """
        if (data_folder(data) / _UNPACKED).is_dir():
            return False  # torchvision compares each file's checksum
        return Pictures().verify(data, progress, _SIZE_PX)

    def import_packages(self, data: Data) -> None:
        """Import the package that reads the present files."""
        unpacked = (data_folder(data) / _UNPACKED).is_dir()
        parquet = any(path.suffix == ".parquet" for path in self.files(data))
        package = "torchvision.datasets" if unpacked else "datasets" if parquet else "PIL.Image"
        importlib.import_module(package)

    def read(self, data: Data) -> Splits:
        """Read the images, uint8 [sample, 32, 32, 3], and their classes [sample].

        Raises:
            UserError: exit status 4 if files are missing or damaged, or an image has another size.
        """
        folder = data_folder(data)
        if (folder / _UNPACKED).is_dir():
            return Splits(_unpickle(data, folder, True), _unpickle(data, folder, False))
        splits = Pictures().read(data)
        return Splits(_decode(data, splits.train), _decode(data, splits.evaluation))


def _unpickle(data: Data, folder: Path, train: bool) -> Samples:
    import numpy as np
    from torchvision.datasets import CIFAR10

    try:  # torchvision verifies each file's checksum before it unpickles it
        part = CIFAR10(str(folder), train=train)
    except RuntimeError as error:
        remedy = "let torchvision fetch it: torchvision.datasets.CIFAR10(FOLDER, download=True)"
        raise refuse_data(data, f"CIFAR-10 in {folder}", "damaged files", remedy) from error
    return Samples(part.data, np.array(part.targets, dtype=np.int64))


def _decode(data: Data, samples: Samples) -> Samples:
    import numpy as np

    images = np.empty((len(samples), _SIZE_PX, _SIZE_PX, 3), dtype=np.uint8)
    for index in range(len(samples)):
        (encoded,) = samples.inputs[index : index + 1]
        expected = f"an image of {_SIZE_PX} x {_SIZE_PX} pixels in {encoded.name}"
        try:
            pixels = encoded.pixels()
        except ValueError as error:
            raise refuse_data(data, expected, str(error), "fetch it again") from None
        if pixels.shape != images.shape[1:]:
            found = f"an image of {pixels.shape[1]} x {pixels.shape[0]}"
            raise refuse_data(data, expected, found, "fetch it again")
        images[index] = pixels
    return Samples(images, samples.labels)
